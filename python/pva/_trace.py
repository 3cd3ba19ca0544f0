"""A trace (.pvti, or what trace() of a model wrote) by the names of the original."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from abele._errors import user_error

from ._files import Foreign, Part, Value, read

_NS_PER_US = 1000
_Numbered = TypeVar("_Numbered")


@dataclass(frozen=True)
class Event(Part):
    """A span, or a moment, whose duration is 0.

    Attributes:
        timestamp: when it began, and duration; in microseconds.
        channel: the name of its channel, or the kind of a device's action.
    """

    label: str
    channel: str
    timestamp: float
    duration: float
    _children: list[Event] = field(default_factory=list, repr=False)

    def children(self) -> list[Event]:
        """What happened within it on its thread, but not within one of these, by time."""
        return list(self._children)


@dataclass(frozen=True)
class Thread(Part):
    """A thread, or a track of a model's devices, which has a name. events: those that lie within no other, by time."""

    tid: int
    name: str
    events: list[Event]


@dataclass(frozen=True)
class Process(Part):
    """A process, or a group of tracks of a model. name: the program's, or the group's."""

    pid: int
    name: str
    threads: list[Thread]

    def thread(self, tid: int) -> Thread:
        """The thread of this number. Raises: E0708."""
        return _found("thread", tid, {each.tid: each for each in self.threads})


@dataclass(frozen=True)
class Trace(Part):
    """Made by openTrace. processes: in the order of the file, which begins with the one that wrote it."""

    processes: list[Process]

    def process(self, pid: int) -> Process:
        """The process of this number. Raises: E0708."""
        return _found("process", pid, {each.pid: each for each in self.processes})


def _found(kind: str, number: int, known: dict[int, _Numbered]) -> _Numbered:
    if number in known:
        return known[number]
    raise user_error(
        "E0708",
        f"the trace has no {kind} {number}",
        expected=", ".join(map(str, known)) or "nothing: it is empty",
        remedy="take a number that is there",
    )


def _times_of(event: Event) -> tuple[int, int]:
    """Begin and end in ns, as they were taken: sums of microseconds may round beyond the end of the span around."""
    begin = round(event.timestamp * _NS_PER_US)
    return begin, begin + round(event.duration * _NS_PER_US)


def _nested(events: list[Event]) -> list[Event]:
    """Those that lie within no other; the others are their children, and children's children."""
    tops: list[Event] = []
    around: list[tuple[int, Event]] = []  # events that may contain the next one, with their ends; the innermost last
    timed = [(*_times_of(event), event) for event in events]
    timed.sort(key=lambda each: (each[0], -each[1]))
    for _, end, event in timed:
        while around and end > around[-1][0]:
            around.pop()
        (around[-1][1]._children if around else tops).append(event)
        if event.duration > 0:
            around.append((end, event))
    return tops


def _entries_of(text: str) -> Iterator[Value]:
    """The list of a file, also of one that a program did not close, without the line that it did not end."""
    lines = text.rpartition("\n")[0].rstrip().removesuffix(",")
    for whole in (text, text + "]}", lines + "]}"):
        try:
            return Value(json.loads(whole))["traceEvents"].items()
        except json.JSONDecodeError:
            continue
    raise Foreign("an empty file" if not text else "no JSON object with a list of events")


def _parse(text: str) -> Trace:
    names: dict[tuple[str, int, int], str] = {}
    found: dict[int, dict[int, list[Event]]] = {}  # by process and thread
    for entry in _entries_of(text):
        label, kind = entry["name"].text(), entry["ph"].text()
        pid, tid = entry["pid"].integer(), entry["tid"].integer()
        threads = found.setdefault(pid, {})
        if kind == "M":
            if label in ("process_name", "thread_name"):
                names[label, pid, tid] = entry["args"]["name"].text()
            if label == "thread_name":
                threads.setdefault(tid, [])
        elif kind == "X" or (kind == "i" and "args" not in entry):  # no rows of heatmaps
            duration = entry["dur"].length() if kind == "X" else 0.0
            threads.setdefault(tid, []).append(Event(label, entry["cat"].text(), entry["ts"].number(), duration))
    return Trace(
        [
            Process(
                pid,
                names.get(("process_name", pid, 0), ""),
                [Thread(tid, names.get(("thread_name", pid, tid), ""), _nested(of)) for tid, of in threads.items()],
            )
            for pid, threads in found.items()
        ]
    )


def openTrace(path: str | os.PathLike[str]) -> Trace:
    """The trace in this file; of one that a crash left open, what there is.

    Raises: E0712 for a file that cannot be read, E0501 for one that is damaged or not ours.
    """
    return read(path, "trace", "PVTI_OPTIONS or trace() of a model", _parse)
