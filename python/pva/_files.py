"""Files of JSON that Abele wrote. Each value is checked where it is read, so that damage is found at opening."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from abele._errors import format_message, refused, user_error

_Content = TypeVar("_Content")


class Foreign(Exception):
    """Raised for a file that Abele did not write; the text says why."""


class Value:
    """A value of a file."""

    __slots__ = ("_at", "_value", "_within")

    def __init__(self, value: Any, at: str | int | None = None, within: Value | None = None) -> None:
        self._value = value
        self._at = at
        self._within = within

    def _where(self) -> str:
        return "the file" if self._within is None else f"{self._at!r} of {self._within._where()}"

    def _wrong(self, expected: str) -> Foreign:
        return Foreign(f"{self._where()} is no {expected}")

    def __contains__(self, key: str) -> bool:
        return isinstance(self._value, dict) and key in self._value

    def __getitem__(self, key: str) -> Value:
        if key not in self:
            raise self._wrong(f"object with {key!r}")
        return Value(self._value[key], key, self)

    def is_null(self) -> bool:
        return self._value is None

    def items(self) -> Iterator[Value]:
        if not isinstance(self._value, list):
            raise self._wrong("list")
        return (Value(each, index, self) for index, each in enumerate(self._value))

    def text(self) -> str:
        if not isinstance(self._value, str):
            raise self._wrong("text")
        return self._value

    def integer(self) -> int:
        if type(self._value) is not int:
            raise self._wrong("integer")
        return self._value

    def count(self) -> int:
        if self.integer() < 0:
            raise self._wrong("integer from 0 on")
        return self.integer()

    def number(self) -> float:
        if type(self._value) not in (int, float) or not math.isfinite(self._value):
            raise self._wrong("finite number")
        return float(self._value)

    def length(self) -> float:
        if self.number() < 0:
            raise self._wrong("number from 0 on")
        return self.number()


def read(path: str | os.PathLike[str], kind: str, writer: str, parse: Callable[[str], _Content]) -> _Content:
    """The result of `parse` for the file's text.

    Args:
        kind: "profile", and writer: who writes it, for messages.
    Raises: E0712 for a file that cannot be read, E0501 if `parse` raises Foreign or fails.
    """
    remedy = f"name a file that {writer} wrote; those of the original's tools open in PopVision"
    try:
        return parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        what = f"the {kind} cannot be read: {error.strerror}"
        raise user_error("E0712", what, at=os.fspath(path), remedy=remedy) from error
    except (Foreign, ValueError, OverflowError, RecursionError) as error:
        what = f"a damaged or foreign file, and no {kind}"
        raise user_error("E0501", what, at=os.fspath(path), found=str(error), remedy=remedy) from error


class Part:
    """A part of a report or a trace. Names that only the original has raise E0711, which is also an AttributeError."""

    if not TYPE_CHECKING:  # checkers find them by their absence

        def __getattr__(self, name):
            what = f"pva: {type(self).__name__}.{name} has no counterpart here"
            remedy = "docs/tracing.md has the names that there are; model.report() shows time and memory by operator"
            raise refused(AttributeError, format_message("E0711", what, remedy=remedy))
