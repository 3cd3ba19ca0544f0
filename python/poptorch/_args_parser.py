"""See _library_names.py."""

from ._library_names import ArgsParser

__all__ = ["ArgsParser"]
