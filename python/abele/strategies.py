"""Execution strategies: how the blocks of a model become stages and phases.

The values and their rules are C++'s (src/options/objects.h). Here are the objects that a program holds: a stage is the
same one wherever it was given to.
Source: spec options.md, section 9.
"""

from __future__ import annotations

import json
from typing import Any, Self

from . import enums
from ._errors import refused
from ._native import core

BlockId = str


class _View:
    """A view of a value of C++. Copies and pickles hold the value's text."""

    _native = None

    def _call(self, method, *arguments):
        self._native.call(method, *arguments)
        return self

    def __getstate__(self):
        return {**self.__dict__, "_native": self._native.text}

    def __setstate__(self, state):
        self.__dict__.update(state, _native=core().optionObjectOf(state["_native"]))


class Stage(_View):
    """The blocks that run together on one device."""

    _stage_id = -1
    _phase_id = -1

    def __init__(self, *block_ids: str) -> None:
        self._native = core().makeOptionObject("Stage", *block_ids)

    @property
    def blocks(self) -> tuple[str, ...]:
        """The block ids, in the order given."""
        return self._native.blocks

    def ipu(self, ipu: int) -> Self:
        """Runs the stage on this device (an index inside the model's device set). Returns self."""
        return self._call("ipu", ipu)

    @property
    def _ipu(self):
        return self._native.device

    def __repr__(self):
        return self._native.text


class Phase:
    """Stages that run at the same time. Arguments: all Stage, or all block ids (then one Stage holds them)."""

    def __init__(self, *arg: Any) -> None:
        self._stages = list(arg) if all(isinstance(item, Stage) for item in arg) else [Stage(*arg)]

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

    def __repr__(self):
        return f"Phase({', '.join(repr(stage) for stage in self._stages)})"


def _itemsOf(item):
    """The items of a list or tuple; anything else is the only item."""
    return item if isinstance(item, (list, tuple)) else (item,)


class _Strategy(_View):
    """What all strategies share."""

    def _start(self, stages, arguments):
        """All of a constructor.

        Args:
            stages: of the program, in order.
            arguments: that C++ makes the strategy of.
        """
        self._native = core().makeOptionObject(self._name, *arguments)
        self._stages = stages

    def _value(self):
        """C++'s strategy, with the stages as they are now."""
        return self._native.withStages([stage._native for stage in self._stages])

    def stage(self, block_id: str) -> Stage:
        """The Stage that lists this block."""
        for stage in self._stages:
            if block_id in stage.blocks:
                return stage
        known = sorted(block for stage in self._stages for block in stage.blocks)
        raise refused(AssertionError, f"unknown block {block_id!r}; known: {', '.join(known)}")

    def backendOptions(self):
        """The strategy's part of Options.toDict()."""
        return self._native.backend_options

    def __repr__(self):
        return self._value().text


class _StageStrategy(_Strategy):
    """Arguments: nothing, one AutoStage, or stages in order (Stage, block id, or list of block ids)."""

    def __init__(self, *args: Any) -> None:
        if len(args) == 1 and isinstance(args[0], enums.AutoStage):
            self._start([], args)
            return
        stages = [item if isinstance(item, Stage) else Stage(*_itemsOf(item)) for item in args]
        self._start(stages, [stage._native for stage in stages])
        for index, stage in enumerate(stages):
            stage._stage_id = index

    def devices(self, number: int | str) -> Self:
        """How many devices an AutoStage.AutoSplit cuts the program for. Ours, not PopTorch's.

        Args:
            number: stages that are made, one for each device; default: as many devices as this process has cores.
                "measured": the number whose step is the shortest when it is measured on this machine, be it one device
                of all threads. Compiling runs the program a few times for each number, on copies of the weights. What
                was found is kept beside the compiled programs (Options.enableExecutableCaching), else as long as the
                process lives; abele.explain tells what each took. Results follow the threads of a device, as eager
                PyTorch's do, so that two machines may differ in last bits.
        Returns: self.
        """
        return self._call("devices", number)


class PipelinedExecution(_StageStrategy):
    """Stages work on different micro-batches at the same time. The default strategy."""

    _name = "PipelinedExecution"

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
        return self._call("schedule", name)

    def costs(self, costs: dict[str, Any] | str) -> Self:
        """Gives the measured times of the stages to schedules that order their work by time. Ours, not PopTorch's.

        Without them "zero-bubble" and "zero-bubble-2" estimate the times from shapes, so that equal programs get equal
        executables. Results never depend on it.

        Args:
            costs: what abele.CompiledModel.costs() returned for the same stages: a dict, or its JSON text. "machine"
                in it describes memories and links (docs/simulator.md), for AutoSplit and explain; it may stand alone.
                Without costs, links between processes and accelerators count as they were measured.
        Returns: self.
        Raises:
            Error: E0404 when the model is compiled, for costs that cannot be read or of another number of stages.
        """
        return self._call("costs", json.dumps(costs) if isinstance(costs, dict) else costs)

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
        return self._call("recompute", use)


class ShardedExecution(_StageStrategy):
    """Stages run one after another: the memory of several devices without a pipeline's constraints."""

    _name = "ShardedExecution"


class _PhasedStrategy(_Strategy):
    """Arguments: phases in order, each a Phase, a list (of stages or block ids), a Stage or a block id."""

    def __init__(self, *phases: Any) -> None:
        self._phases = [item if isinstance(item, Phase) else Phase(*_itemsOf(item)) for item in phases]
        stages = [stage for phase in self._phases for stage in phase.stages]
        self._start(stages, [[stage._native for stage in phase.stages] for phase in self._phases])
        for index, phase in enumerate(self._phases):
            for stage_index, stage in enumerate(phase.stages):
                stage._stage_id, stage._phase_id = stage_index, index

    def phase(self, phase: int) -> Phase:
        """The phase at this position."""
        if not (isinstance(phase, int) and phase >= 0):
            raise refused(AssertionError, f"phase must be an int >= 0, got {phase!r}")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Forward and backward do not share the middle phase. Returns self."""
        return self._call("useSeparateBackwardPhase", use)

    @property
    def _tensors_liveness(self):
        return enums.Liveness(self._native.liveness)


class SerialPhasedExecution(_PhasedStrategy):
    """Phases one after another on one group of devices."""

    _name = "SerialPhasedExecution"

    def setTensorsLiveness(self, liveness: enums.Liveness) -> Self:
        """Where tensors live between phases. Returns self."""
        return self._call("setTensorsLiveness", liveness)


class ParallelPhasedExecution(_PhasedStrategy):
    """Phases that alternate between two groups of devices."""

    _name = "ParallelPhasedExecution"

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Activations leave the device between forward and backward. Returns self."""
        return self._call("sendTensorsOffChipAfterFwd", off_chip)


__all__ = [
    "BlockId",
    "ParallelPhasedExecution",
    "Phase",
    "PipelinedExecution",
    "SerialPhasedExecution",
    "ShardedExecution",
    "Stage",
]
