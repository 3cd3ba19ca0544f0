"""Environment variables that are read when a model is compiled. Source: spec environment.md, section 3."""

import os

from ._errors import userError


def integer(name, default=0):
    """The value of an integer variable; the default when it is not set or empty.

    Raises:
        poptorch.Error: it is no integer.
    """
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise userError(
            "E0702",
            "option-value",
            f"environment variable {name} is {text!r}",
            expected="an integer",
            remedy=f"set {name} to an integer or unset it",
        ) from None
