"""Tracing for programs that time their own work: events go to the file of poptorch's channels (docs/tracing.md).

Without PVTI_OPTIONS everything here does nothing. Source: spec clients.md, item 22.
"""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Iterable
from typing import Any, Self

from abele import profiling as _profiling


class TraceChannel:
    """A named source of events. Made by createTraceChannel."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"TraceChannel({self.name!r})"


def createTraceChannel(name: str) -> TraceChannel:
    """The channel of this name."""
    return TraceChannel(name)


def _add(name: str, channel: str, phase: str, **fields: Any) -> None:
    tracing = _profiling._tracing()
    if tracing is not None:
        tracing.add(name, channel, phase, **fields)


class Tracepoint:
    """Context manager: the code inside is one span with this label."""

    def __init__(self, channel: TraceChannel, label: str) -> None:
        self._channel = channel
        self._label = label
        self._span: Any = contextlib.nullcontext()

    def __enter__(self) -> Self:
        self._span = _profiling.Channel(self._channel.name)._span(self._label)
        self._span.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._span.__exit__(*exception)

    @staticmethod
    def event(channel: TraceChannel, text: str) -> None:
        """One moment with this label."""
        _add(text, channel.name, "i", s="t")


class Series:
    """One line of a Graph."""

    def __init__(self, graph: Graph, name: str) -> None:
        self._graph = graph
        self._name = name

    def add(self, value: float) -> None:
        """Adds the present value."""
        _add(self._graph.name, self._graph.unit, "C", args={self._name: float(value)})


class Graph:
    """Values over time, one line for each series."""

    def __init__(self, name: str, unit: str = "") -> None:
        self.name = name
        self.unit = unit

    def addSeries(self, name: str) -> Series:
        """A line of this name. Returns: its Series."""
        return Series(self, name)


class HeatmapDouble:
    """Histograms over time.

    Args:
        edges: of the bins, ascending; bin i holds edges[i] <= value < edges[i + 1], the last one its upper edge too.
    """

    def __init__(self, name: str, edges: Iterable[float], unit: str = "") -> None:
        self.name = name
        self.edges = [float(edge) for edge in edges]
        self.unit = unit
        if len(self.edges) < 2 or self.edges != sorted(self.edges):
            raise ValueError(f"a heatmap needs two or more ascending edges, got {self.edges}")

    def add(self, values: Iterable[float]) -> None:
        """Counts these values; those outside of the edges are left out."""
        counts = [0] * (len(self.edges) - 1)
        for value in values:
            if self.edges[0] <= value <= self.edges[-1]:
                counts[min(bisect.bisect_right(self.edges, value), len(counts)) - 1] += 1
        _add(self.name, self.unit, "i", s="t", args={"unit": self.unit, "edges": self.edges, "counts": counts})


__all__ = ["Graph", "HeatmapDouble", "Series", "TraceChannel", "Tracepoint", "createTraceChannel"]
