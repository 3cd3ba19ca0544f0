"""A profile (profile.pop) with the names of the original's reports. docs/tracing.md has the rules for its numbers."""

import json
import os
from dataclasses import dataclass
from typing import Any

from abele._errors import user_error

from ._files import Foreign, Part, Value, read

_FORMAT = "abele-profile"
_VERSION = 1
_TILES = 1472  # in an IPU of the architecture that gc-info names
_CYCLES_PER_SECOND = 1_330_000_000  # as cycleCount() of a model has them


@dataclass(frozen=True)
class _Stage:
    replica: int
    device: int
    name: str


@dataclass(frozen=True)
class Version(Part):
    """string: the version of Abele that wrote the file."""

    string: str


@dataclass(frozen=True)
class Total(Part):
    """includingGaps: bytes."""

    includingGaps: int


@dataclass(frozen=True)
class Memory(Part):
    """The memory of a tile."""

    total: Total


@dataclass(frozen=True)
class Tile(Part):
    """A share of a device's planned memory."""

    memory: Memory


@dataclass(frozen=True)
class Target(Part):
    """numTiles: of the devices of one replica."""

    numTiles: int


@dataclass(frozen=True)
class Graph(Part):
    """numComputeSets: stages of one replica."""

    numComputeSets: int


class ComputeSet(Part):
    """The work of a stage in a step. The file does not list the operators, so `vertices` raises E0711."""

    vertices: list[Any]


@dataclass(frozen=True)
class OnTileExecute(Part):
    """A stage's part of a step, by the stage's name."""

    name: str
    computeset: ComputeSet


class ProgramVisitor:
    """A base class for visitors; accept() calls its methods."""

    def visitOnTileExecute(self, onTileExecute: OnTileExecute, /) -> None:
        """A stage's part of a step."""


@dataclass(frozen=True)
class Program(Part):
    """The work of the devices in a step."""

    _stages: tuple[_Stage, ...]

    def accept(self, visitor: ProgramVisitor) -> None:
        """Visits the stages in order, replica after replica."""
        for stage in self._stages:
            visitor.visitOnTileExecute(OnTileExecute(stage.name, ComputeSet()))


@dataclass(frozen=True)
class Ipu(Part):
    """cycles: the time of the step, as returned by the model's cycleCount()."""

    cycles: int


@dataclass(frozen=True)
class Step(Part):
    """A call of the model. ipus: the devices, replica after replica."""

    ipus: list[Ipu]
    program: Program


@dataclass(frozen=True)
class Execution(Part):
    """steps: the first calls of the model."""

    steps: list[Step]


@dataclass(frozen=True)
class Compilation(Part):
    """Facts that are known before a program runs. Properties raise E0705 if the profile does not have them."""

    _path: str
    _bytes: dict[int, int] | None  # by device; None: the plan was not known
    _stages: tuple[_Stage, ...]  # stages of the first run

    def _missing(self, what: str, remedy: str) -> Exception:
        return user_error("E0705", f"the profile has no {what}", at=self._path, remedy=remedy)

    def _require_run(self) -> tuple[_Stage, ...]:
        if not self._stages:
            raise self._missing("run yet, which names the stages", "call the model before the profile is read")
        return tuple(stage for stage in self._stages if stage.replica == self._stages[0].replica)

    @property
    def graph(self) -> Graph:
        return Graph(len(self._require_run()))

    @property
    def target(self) -> Target:
        devices = self._bytes if self._bytes is not None else {stage.device for stage in self._require_run()}
        return Target(_TILES * len(devices))

    @property
    def tiles(self) -> list[Tile]:
        """The tiles of one replica, device after device. Their bytes add up to the planned bytes."""
        if self._bytes is None:
            raise self._missing(
                "planned memory: its program was loaded from a file, or found in the cache",
                "profile a process that compiles the program, without a cache",
            )
        return [
            Tile(Memory(Total(total // _TILES + (tile < total % _TILES))))
            for _, total in sorted(self._bytes.items())
            for tile in range(_TILES)
        ]


@dataclass(frozen=True)
class Report(Part):
    """Made by openReport."""

    poplarVersion: Version
    compilation: Compilation
    execution: Execution


def _bytes_by_device(memory: Value) -> dict[int, int] | None:
    if memory.is_null():
        return None
    found: dict[int, int] = {}
    for entry in memory["devices"].items():
        device = entry["device"].count()
        found[device] = found.get(device, 0) + entry["peak_bytes"].count()
    return found


def _stages_of(run: Value) -> tuple[_Stage, ...]:
    return tuple(
        _Stage(stage["replica"].count(), stage["device"].count(), stage["name"].text())
        for stage in run["stages"].items()
    )


def _step_of(run: Value) -> Step:
    stages = _stages_of(run)
    cycles = int(run["step_ns"].count() * 1e-9 * _CYCLES_PER_SECOND)
    devices = dict.fromkeys((stage.replica, stage.device) for stage in stages)
    return Step([Ipu(cycles) for _ in sorted(devices)], Program(stages))


def openReport(path: str | os.PathLike[str]) -> Report:
    """The profile in this file.

    Raises: E0712 for a file that cannot be read, E0501 for one that is damaged, of another version or not ours.
    """

    def parse(text: str) -> Report:
        root = Value(json.loads(text))
        if root["format"].text() != _FORMAT:
            raise Foreign(f"a file of the format {root['format'].text()}")
        if root["version"].integer() != _VERSION:
            raise Foreign(f"a profile of version {root['version'].integer()}; this reads version {_VERSION}")
        runs = list(root["execution"].items())
        stages = _stages_of(runs[0]) if runs else ()
        return Report(
            Version(root["abele"].text()),
            Compilation(os.fspath(path), _bytes_by_device(root["memory"]), stages),
            Execution([_step_of(run) for run in runs]),
        )

    return read(path, "profile", "Options.enableProfiling", parse)
