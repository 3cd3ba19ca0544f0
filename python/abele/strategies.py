"""Execution strategies: how the blocks of a model become stages and phases.

Source: spec options.md, section 9. Which strategies run is decided at compile (src/compile/from_options.cc).
"""

from __future__ import annotations

import json
from typing import Any, Self

from . import enums
from ._errors import refused
from ._native import core

BlockId = str


def schedules() -> list[str]:
    """The words of schedules that a user may choose, as src/plan/schedules.def has them."""
    return tuple(core().Schedule.__members__)


class Stage:
    """The blocks that run together on one device."""

    def __init__(self, *block_ids: str) -> None:
        if not all(isinstance(block, str) for block in block_ids):
            raise refused(AssertionError, f"block ids must be strings, got {block_ids!r}")
        self._blocks = tuple(block_ids)
        self._stage_id = -1
        self._phase_id = -1
        self._ipu = None

    @property
    def blocks(self) -> list[str]:
        """The block ids, in the order given."""
        return self._blocks

    def ipu(self, ipu: int) -> Self:
        """Runs the stage on this device (an index inside the model's device set). Returns self."""
        if not isinstance(ipu, int):
            raise refused(AssertionError, f"ipu must be an int, got {ipu!r}")
        self._ipu = ipu
        return self

    def _description(self):
        """(type, arguments, calls of its methods), as C++ makes one."""
        return "Stage", list(self._blocks), [] if self._ipu is None else [("ipu", self._ipu)]

    def __repr__(self):
        blocks = ", ".join(repr(block) for block in self._blocks)
        return f"Stage({blocks})" + ("" if self._ipu is None else f".ipu({self._ipu})")


class Phase:
    """Stages that run at the same time. Arguments: all Stage, or all block ids (then one Stage holds them)."""

    def __init__(self, *arg: Any) -> None:
        if all(isinstance(item, Stage) for item in arg):
            self._stages = list(arg)
        else:
            if not all(isinstance(item, str) for item in arg):
                raise refused(AssertionError, "a Phase takes either stages or block ids, not a mixture")
            self._stages = [Stage(*arg)]

    @property
    def stages(self) -> list[Stage]:
        """The stages, in the order given."""
        return self._stages

    def stage(self, idx: int) -> Stage:
        """The stage at this position."""
        return self._stages[idx]

    def ipus(self, *ipus: int) -> Self:
        """Gives each stage its device."""
        if len(ipus) != len(self._stages):
            raise refused(AssertionError, f"{len(ipus)} devices for {len(self._stages)} stages")
        for stage, ipu in zip(self._stages, ipus, strict=True):
            stage.ipu(ipu)

    def _description(self):
        """(type, arguments, calls of its methods), as C++ makes one."""
        return "Phase", [stage._description() for stage in self._stages], []

    def __repr__(self):
        return f"Phase({', '.join(repr(stage) for stage in self._stages)})"


def _toStage(item):
    """A Stage from a Stage, a block id or a list of block ids."""
    if isinstance(item, Stage):
        return item
    if isinstance(item, str):
        return Stage(item)
    if not isinstance(item, (list, tuple)):
        raise refused(AssertionError, f"expected a Stage, a block id or a list of block ids, got {item!r}")
    return Stage(*item)


class _Strategy:
    """What all strategies share: stages by block id."""

    def __init__(self) -> None:
        self._stage_of = {}

    def _addStage(self, stage):
        for block in stage.blocks:
            if block in self._stage_of:
                raise refused(AssertionError, f"block {block!r} is listed twice")
            self._stage_of[block] = stage

    def stage(self, block_id: str) -> Stage:
        """The Stage that lists this block."""
        if block_id not in self._stage_of:
            raise refused(AssertionError, f"unknown block {block_id!r}; known: {', '.join(sorted(self._stage_of))}")
        return self._stage_of[block_id]

    def backendOptions(self):
        """The strategy's part of Options.toDict()."""
        return {"execution_mode": self._execution_mode}


class _StageStrategy(_Strategy):
    """Arguments: nothing, one AutoStage, or stages in order (Stage, block id, or list of block ids)."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        self._auto_stage = enums.AutoStage.SameAsIpu
        self._stages = []
        self._devices = None
        if len(args) == 1 and isinstance(args[0], enums.AutoStage):
            self._auto_stage = args[0]
            return
        for index, item in enumerate(args):
            stage = _toStage(item)
            stage._stage_id = index
            self._addStage(stage)
            self._stages.append(stage)

    def devices(self, number: int) -> Self:
        """How many devices an AutoStage.AutoSplit cuts the program for. Ours, not PopTorch's.

        Args:
            number: stages that are made, one for each device; default: as many devices as this process has cores.
        Returns: self.
        """
        if not (isinstance(number, int) and number >= 1):
            raise refused(AssertionError, f"devices must be an int >= 1, got {number!r}")
        if self._auto_stage != enums.AutoStage.AutoSplit:
            raise refused(AssertionError, "devices() is for AutoStage.AutoSplit")
        self._devices = number
        return self

    def _description(self):
        """(type, arguments, calls of its methods), as C++ makes one."""
        stages = [stage._description() for stage in self._stages] or [self._auto_stage]
        return self._name, stages, [("devices", self._devices)] if self._devices else []

    def __repr__(self):
        items = self._stages or [self._auto_stage]
        devices = "" if self._devices is None else f".devices({self._devices})"
        return f"{type(self).__name__}({', '.join(map(repr, items))}){devices}"


class PipelinedExecution(_StageStrategy):
    """Stages work on different micro-batches at the same time. The default strategy."""

    _name = "PipelinedExecution"
    _execution_mode = 0
    _schedule = None  # left to the compiler
    _costs = ""
    _recompute = False

    def schedule(self, name: str) -> Self:
        """Chooses the order of the stages' work in training. Results never depend on it. Ours, not PopTorch's.

        Args:
            name: a word of docs/schedules.md. "1f1b": a stage runs a backward as soon as it can; "gpipe": all forwards
                of an update first; "interleaved": 1F1B over several stages a device, stage s on device s modulo devices
                (see Stage.ipu); "zero-bubble": weight gradients wait until a device would idle, in the memory that 1F1B
                needs at most; "zero-bubble-2": in twice as much; "auto": the one of these
                that is predicted to be fastest. Without a choice: "1f1b", or one that is predicted to be noticeably
                faster, within Options.deviceMemoryLimit or, without a limit, in no more memory than the fullest device
                needs under "1f1b" (docs/schedules.md).
        Returns: self.
        """
        known = (*schedules(), "auto")
        if name not in known:
            raise refused(AssertionError, f"there is no schedule {name!r}; known: {', '.join(known)}")
        self._schedule = name
        return self

    def costs(self, costs: dict[str, Any] | str) -> Self:
        """Gives the measured times of the stages to schedules that order their work by time. Ours, not PopTorch's.

        Without them "zero-bubble" and "zero-bubble-2" estimate the times from shapes, so that equal programs get equal
        executables. Results never depend on it.

        Args:
            costs: what abele.CompiledModel.costs() returned for the same stages: a dict, or its JSON text. "machine"
                in it describes memories and links (docs/simulator.md), for AutoSplit and explain; it may stand alone.
        Returns: self.
        Raises:
            Error: E0404 when the model is compiled, for costs that cannot be read or of another number of stages.
        """
        if not isinstance(costs, (dict, str)):
            raise refused(AssertionError, f"costs must be a dict or JSON text, got {costs!r}")
        self._costs = costs if isinstance(costs, str) else json.dumps(costs)
        return self

    def recompute(self, use: bool | str = True) -> Self:
        """Backward makes the values of its stage's forward again instead of keeping them. Ours, not PopTorch's.

        Args:
            use: True; False; or "fit": only as much as it takes for every device to fit Options.deviceMemoryLimit, in
                the least extra time that is found. "fit" makes nothing again where all fits or nothing is limited, and
                looks at the last stage too.

        Results are the same bits; a stage then keeps only what it was given, what other stages read, what
        recomputationCheckpoint names, and what cannot be made twice (running statistics). The last stage, whose
        backward follows at once, keeps everything under "1f1b" and "interleaved".

        Returns: self.
        """
        if not (isinstance(use, bool) or use == "fit"):
            raise refused(AssertionError, f'use must be a bool or "fit", got {use!r}')
        self._recompute = use
        return self

    def _description(self):
        name, stages, calls = super()._description()
        chosen = {"schedule": self._schedule, "costs": self._costs, "recompute": self._recompute}
        return name, stages, calls + [(method, value) for method, value in chosen.items() if value]

    def __repr__(self):
        schedule = "" if self._schedule is None else f".schedule({self._schedule!r})"
        schedule += ".costs(...)" if self._costs else ""
        return (
            super().__repr__() + schedule + {True: ".recompute()", "fit": '.recompute("fit")'}.get(self._recompute, "")
        )


class ShardedExecution(_StageStrategy):
    """Stages run one after another: the memory of several devices without a pipeline's constraints."""

    _name = "ShardedExecution"
    _execution_mode = 1


class _PhasedStrategy(_Strategy):
    """Arguments: phases in order, each a Phase, a list (of stages or block ids), a Stage or a block id."""

    _execution_mode = 2
    _auto_stage = enums.AutoStage.SameAsIpu  # never asked: the phases list all blocks

    def __init__(self, *phases: Any) -> None:
        super().__init__()
        if not phases:
            raise refused(AssertionError, f"{type(self).__name__} needs at least one phase")
        self._phases = []
        for index, item in enumerate(phases):
            phase = self._toPhase(item)
            for stage_index, stage in enumerate(phase.stages):
                stage._phase_id = index
                stage._stage_id = stage_index
                self._addStage(stage)
            self._phases.append(phase)
        self._separate_backward_phase = False
        self._tensors_liveness = enums.Liveness.AlwaysLive

    @property
    def _stages(self):
        return [stage for phase in self._phases for stage in phase.stages]

    @staticmethod
    def _toPhase(item):
        if isinstance(item, Phase):
            return item
        if isinstance(item, (list, tuple)):
            return Phase(*item)
        return Phase(item)

    def phase(self, phase: int) -> Phase:
        """The phase at this position."""
        if not (isinstance(phase, int) and phase >= 0):
            raise refused(AssertionError, f"phase must be an int >= 0, got {phase!r}")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Forward and backward do not share the middle phase. Returns self."""
        if not isinstance(use, bool):
            raise refused(AssertionError, f"use must be a bool, got {use!r}")
        self._separate_backward_phase = use
        return self

    def _description(self):
        calls = [("useSeparateBackwardPhase", True)] if self._separate_backward_phase else []
        if self._tensors_liveness != enums.Liveness.AlwaysLive:
            calls.append(self._livenessCall())
        return self._name, [phase._description() for phase in self._phases], calls

    def backendOptions(self):
        return {
            **super().backendOptions(),
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": int(self._tensors_liveness),
        }

    def __repr__(self):
        text = f"{type(self).__name__}({', '.join(map(repr, self._phases))})"
        if self._separate_backward_phase:
            text += ".useSeparateBackwardPhase()"
        if self._tensors_liveness != enums.Liveness.AlwaysLive:
            text += f".{self._tensors_liveness!s}"
        return text


class SerialPhasedExecution(_PhasedStrategy):
    """Phases one after another on one group of devices."""

    _name = "SerialPhasedExecution"
    _execution_mode = 3

    def _livenessCall(self):
        return "setTensorsLiveness", self._tensors_liveness

    def setTensorsLiveness(self, liveness: enums.Liveness) -> Self:
        """Where tensors live between phases. Returns self."""
        if not isinstance(liveness, enums.Liveness):
            raise refused(AssertionError, f"liveness must be a Liveness, got {liveness!r}")
        self._tensors_liveness = liveness
        return self


class ParallelPhasedExecution(_PhasedStrategy):
    """Phases that alternate between two groups of devices."""

    _name = "ParallelPhasedExecution"

    def _livenessCall(self):
        return "sendTensorsOffChipAfterFwd", True

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Activations leave the device between forward and backward. Returns self."""
        if not isinstance(off_chip, bool):
            raise refused(AssertionError, f"off_chip must be a bool, got {off_chip!r}")
        self._tensors_liveness = enums.Liveness.OffChipAfterFwd if off_chip else enums.Liveness.AlwaysLive
        return self


__all__ = [
    "BlockId",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
]
