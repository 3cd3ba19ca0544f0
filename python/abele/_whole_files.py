"""Our files, by the native writer and reader: a file is old or new, never partial (docs/executable.md, Writing)."""

import os

from ._errors import format_message, refused, user_error
from ._native import core


def native_path(path):
    """A path in the native module's form: bytes, which need not be valid text."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        what = f"the path of a file is a {type(path).__name__}"
        raise refused(TypeError, format_message("E0708", what, expected="a str, bytes or an os.PathLike"))
    path = os.fsdecode(path)
    try:
        return os.fsencode(os.path.abspath(path))
    except FileNotFoundError:  # the current folder was removed; the native module reports that
        return os.fsencode(path)


def write_text(path, text):
    """Replaces the file by this text in one step."""
    core().writeWholeFile(native_path(path), text.encode("utf-8", "surrogateescape"))


def read_text(path):
    """The text of a file that people write."""
    name = native_path(path)
    try:
        os.stat(name)
    except (FileNotFoundError, PermissionError):  # callers expect these
        raise
    except OSError:  # the native reader explains the failure
        pass
    content = core().readWholeFile(name, b"", core().MOST_TEXT_BYTES)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise user_error(
            "E0712",
            "a file of text has bytes that are no characters",
            at=os.fsdecode(name),
            found=f"byte {content[error.start]:#04x} at {error.start}",
            expected="a text in UTF-8",
            remedy="save the file as UTF-8, or use a copy of it",
        ) from None
