"""Files of ours, by the native writer and reader: old or new, never half (docs/executable.md, Writing)."""

import os

from ._errors import formatMessage, refused, userError
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
    try:
        os.stat(name)
    except (FileNotFoundError, PermissionError):  # what Python's callers know
        raise
    except OSError:  # the native reader says what is wrong
        pass
    content = core().readWholeFile(name, b"", core().MOST_TEXT_BYTES)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise userError(
            "E0712",
            "a file of text has bytes that are no characters",
            at=os.fsdecode(name),
            found=f"byte {content[error.start]:#04x} at {error.start}",
            expected="a text in UTF-8",
            remedy="save the file as UTF-8, or use a copy of it",
        ) from None
