"""Errors with a code, and their texts: the five parts of docs/errors.md."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from ._exceptions import (  # noqa: F401  (all errors are here for the other modules)
    AND,
    AT_COMPILE,
    OF_OPTIONS,
    ConfigFileError,
    Error,
    RecoverableError,
    UnrecoverableError,
    createPoptorchError,
    field,
    make_error,
    refused,
)
from ._native import core

globals().update((each.__name__, each) for each in AND.values())  # pickles look for the classes here
_Function = TypeVar("_Function", bound=Callable[..., Any])


def format_message(code, what, at="", found="", expected="", remedy=""):
    """The five-part text of docs/errors.md."""
    lines = [f"{code} {core().error_names[code]}: {what}"]
    for label, part in (("at", at), ("found", found), ("expected", expected), ("try", remedy)):
        lines += field(label, part)
    return "\n".join(lines)


def user_error(code, what, at="", found="", expected="", remedy=""):
    """An Error with a code, raised by Python code."""
    return make_error(Error, format_message(code, what, at, found, expected, remedy), Error.type, code=code)


def located(error, place):
    """The error of a program's text, with the place in it. Stays an error of the same class."""
    builtin = next((each for each in AND if type(error) is each), None)
    if builtin is not None:
        code = "E0701" if builtin in (AttributeError, NameError) else "E0702"
        error = refused(builtin, format_message(code, f"{builtin.__name__}: {error}"))
    if isinstance(error, Error):
        place = ", ".join(filter(None, (error.location, place)))
        error.args = make_error(type(error), error.message, error.type, place, error.code).args
        error.location = place
    else:
        error.add_note(place)
    return error


def wrong_type(function, argument, value, expected):
    """The error for an argument of a wrong type: E0708, which is also a TypeError. The caller raises it."""
    return refused(
        TypeError, format_message("E0708", f"{function}: {argument} is a {type(value).__name__}", expected=expected)
    )


def require_type(function, argument, value, kinds, expected):
    """Raises wrong_type unless the value is of one of the types."""
    if not isinstance(value, kinds):
        raise wrong_type(function, argument, value, expected)


def typed_arguments(function: _Function) -> _Function:
    """Refuses arguments that a native function of `function` does not take with E0708, which is also a TypeError."""

    @functools.wraps(function)
    def call(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            frame = error.__traceback__.tb_next  # the frame of `function`; a function below may raise its own TypeError
            if frame is None or frame.tb_next is not None or "incompatible function arguments" not in str(error):
                raise
        signature = inspect.signature(function)
        given = signature.bind(*args, **kwargs).arguments
        raise refused(
            TypeError,
            format_message(
                "E0708",
                f"{function.__name__}: arguments of a wrong type",
                found=", ".join(f"{name}: {type(value).__name__}" for name, value in given.items()),
                expected=", ".join(str(parameter) for parameter in signature.parameters.values()),
            ),
        )

    return call  # type: ignore[return-value]
