"""Exceptions of the public API, and the one place that makes them. The native module calls it, too.

Source: spec executor.md, section 10.
"""

import os
import re

_MAX_LINES = 80
_LOG_FILE = "poptorch_error.log"
_CODE = re.compile(r"E\d{4} ")


class Error(Exception):
    """The program or its options are wrong, or Abele is (then the text asks for a report).

    Attributes:
        message: what happened, without context.
        type: "poptorch_py_error" if Python code raised it, otherwise the kind of native error.
        location: context of the failing call; may be empty.
        code: "E0703" for errors that docs/errors.md lists, otherwise empty.
    """

    type = "poptorch_py_error"
    message = ""
    location = ""
    code = ""


class RecoverableError(Error):
    """A device failed; `recovery_action` (IPU_RESET, PARTITION_RESET, FULL_RESET) makes it usable again."""

    recovery_action = ""


class UnrecoverableError(Error):
    """A device failed and cannot be used again."""


class ConfigFileError(Exception):
    """A file for Options.loadFromFile that does not parse."""


# Errors that are also one of Python's own, because callers of PopTorch expect that one.
_BOTH = {
    AssertionError: "_AssertionFailed",
    ValueError: "_WrongValue",
    RuntimeError: "_WrongState",
    TypeError: "_WrongType",
    AttributeError: "_WrongAttribute",
    NameError: "_UnknownName",
    IndexError: "_WrongIndex",
    KeyError: "_UnknownKey",
    ZeroDivisionError: "_DividedByZero",
}
_HOME = f"{__package__}._errors"  # where programs and pickles find the classes
_MEMBERS = {"__module__": _HOME, "__str__": Exception.__str__}  # KeyError shows its text as a literal
AND = {builtin: type(name, (Error, builtin), dict(_MEMBERS)) for builtin, name in _BOTH.items()}
for _each in (Error, RecoverableError, UnrecoverableError, ConfigFileError):
    _each.__module__ = _HOME
# The errors of options, by the Python exception that refuses the value.
OF_OPTIONS = {**{builtin.__name__: each for builtin, each in AND.items()}, "ConfigFileError": ConfigFileError}


# Native error class -> (Python class, the type that PopTorch programs compare with).
NATIVE = {
    "user": (Error, "poptorch_cpp_error"),
    "internal": (Error, "popart_internal_exception"),
    "recoverable": (RecoverableError, "poplar_recoverable_runtime_error"),
    "unrecoverable": (UnrecoverableError, "poplar_unrecoverable_runtime_error"),
}


# Codes of errors that PopTorch asserts when it compiles -> Python's exception class that callers expect.
AT_COMPILE = dict.fromkeys(("E0304", "E0305", "E0703", "E0712"), AssertionError)


def _shorten(text):
    """Text of at most 80 lines; longer text goes to a file in the working directory."""
    if text.count("\n") < _MAX_LINES:
        return text
    path = os.path.abspath(_LOG_FILE)
    try:
        with open(path, "w", encoding="utf-8") as log:
            log.write(text)
    except OSError:
        return text
    return f"{text.splitlines()[0]}\n  the whole message is in {path}"


def field(label, text):
    """The lines of one part of a message; no line for an empty part."""
    first, *others = text.splitlines() or [""]
    return [f"  {label:<10}{first}", *(" " * 12 + line for line in others)] if text else []


def make_error(cls, text, kind, location="", code="", recovery_action=""):
    """An exception whose text has the message, the context, the type and the recovery action, if they are given.

    Args:
        kind: the type that programs compare with.
        location: context of the failing call.
        recovery_action: for RecoverableError.
    """
    text, location = _shorten(text), ", ".join(location.splitlines())
    parts = [text, *field("in", location), f"  type      {kind}"]
    if recovery_action:
        parts.append(f"recovery action: {recovery_action}")
    error = cls("\n".join(parts))
    error.message = text
    error.type = kind
    error.location = location
    error.code = code
    if cls is RecoverableError:
        error.recovery_action = recovery_action
    return error


def createPoptorchError(msg):
    """An Error of the Python layer with this message. The caller raises it."""
    return make_error(Error, msg, Error.type)


def refused(builtin, text):
    """An Error that is also one of Python's own errors, for callers that expect that one. The caller raises it.

    Args:
        builtin: AssertionError, ValueError, RuntimeError, TypeError or AttributeError.
        text: the message. If it begins with a code, the code becomes the error's.
    """
    code = text[:5] if _CODE.match(text) else ""
    return make_error(AND[builtin], text, Error.type, code=code)


# Codes of errors that PopTorch raises in Python, and Abele in C++.
_OF_PYTHON_LAYER = {"E0705"}


def create_native_error(kind, code, text, context, recovery_action):
    """An exception for a native error. The native module's exception translator calls this factory.

    Args:
        kind: a key of NATIVE, or "option" and the name of a Python exception.
        code: "E0303".
        text: the whole message without context.
        context: lines that say where in the step it happened; may be empty.
        recovery_action: for kind "recoverable".
    """
    layer, _, builtin = kind.partition(" ")
    if layer == "option":  # also a Python exception, if a name is given
        cls, type_name = OF_OPTIONS.get(builtin, Error), Error.type
    else:
        cls, type_name = NATIVE[kind]
        type_name = Error.type if code in _OF_PYTHON_LAYER else type_name
    return make_error(cls, text, type_name, context, code, recovery_action)
