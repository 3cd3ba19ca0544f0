"""Files of ours, by the native writer and reader: old or new, never half (docs/executable.md, Writing)."""

import os

from ._errors import formatMessage, refused
from ._native import core


def nativePath(path):
    """A path as the native module takes it: its bytes, which need be no text."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        what = f"the path of a file is a {type(path).__name__}"
        raise refused(TypeError, formatMessage("E0708", what, expected="a str, bytes or an os.PathLike"))
    path = os.fsdecode(path)
    try:
        return os.fsencode(os.path.abspath(path))
    except FileNotFoundError:  # where the process is was removed; the native module says so
        return os.fsencode(path)


def writeText(path, text):
    """Replaces the file by this text, at once."""
    core().writeWholeFile(nativePath(path), text.encode("utf-8", "surrogateescape"))


def readText(path):
    """The text of a file that people write."""
    name = nativePath(path)
    os.stat(name)  # FileNotFoundError and PermissionError are what Python's callers know
    return core().readWholeFile(name, b"", core().MOST_TEXT_BYTES).decode("utf-8")
