"""Execution strategies: how the blocks of a model become stages and phases.

C++ has the values and their rules (src/options/objects.h). This file has the objects that a program holds: a stage is
the same object in every place where it was given.
Source: spec options.md, section 9.
"""

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


def _items_of(item):
    """The items of a list or tuple. Any other object is the only item."""
    return item if isinstance(item, (list, tuple)) else (item,)


class _Strategy(_View):
    """The common part of all strategies."""

    def _start(self, stages, arguments):
        """Runs the whole constructor: C++ makes the strategy of the arguments."""
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
        stages = [item if isinstance(item, Stage) else Stage(*_items_of(item)) for item in args]
        self._start(stages, [stage._native for stage in stages])
        for index, stage in enumerate(stages):
            stage._stage_id = index

    def devices(self, number: int | str) -> Self:
        """Sets the number of devices for AutoStage.AutoSplit. Ours, not PopTorch's.

        Args:
            number: number of stages, one per device; default: the number of cores of this process. "measured": the
                number with the shortest measured step on this machine, which may be one device with all threads.
                Several devices take micro-batches in turn (Options.dataParallel); if they cannot, they are a pipeline.
                Compiling runs the program a few times for each number, on copies of the weights. The choice is stored
                beside the compiled programs (Options.enableExecutableCaching), or for the life of the process.
                abele.explain lists the measured times. As in eager PyTorch, results follow the number of threads of a
                device, so two machines may differ in last bits.
        Returns: self.
        """
        return self._call("devices", number)


class PipelinedExecution(_StageStrategy):
    """Stages work on different micro-batches at the same time. The default strategy."""

    _name = "PipelinedExecution"

    def schedule(self, name: str) -> Self:
        """Chooses the order of the stages' work in training. Results never depend on it. Ours, not PopTorch's.

        Args:
            name: a word of docs/schedules.md. "1f1b": a stage runs a backward as soon as it can. "gpipe": all forwards
                of an update run first. "interleaved": 1F1B over several stages per device, with stage s on device s
                modulo devices (see Stage.ipu). "zero-bubble": weight gradients wait until a device would idle, in at
                most the memory of 1F1B. "zero-bubble-2": in at most twice that memory. "auto": the schedule among these
                with the shortest predicted step. Default: "1f1b", or a schedule that is predicted to be noticeably
                faster and fits Options.deviceMemoryLimit, or without a limit the memory of the fullest device under
                "1f1b" (docs/schedules.md).
        Returns: self.
        """
        return self._call("schedule", name)

    def costs(self, costs: dict[str, Any] | str) -> Self:
        """Sets measured times of the stages for schedules that order their work by time. Ours, not PopTorch's.

        Without them "zero-bubble" and "zero-bubble-2" estimate the times from shapes, so that equal programs get equal
        executables. Results never depend on them.

        Args:
            costs: result of abele.CompiledModel.costs() for the same stages: a dict, or its JSON text. "machine" in it
                describes memories and links (docs/simulator.md), for AutoSplit and explain; it may be the only entry.
                Without costs, links between processes and accelerators have the times of the machine file.
        Returns: self.
        Raises:
            Error: E0404 when the model is compiled, for costs that cannot be read or have another number of stages.
        """
        return self._call("costs", json.dumps(costs) if isinstance(costs, dict) else costs)

    def recompute(self, use: bool | str = True) -> Self:
        """Backward computes the values of its stage's forward again instead of keeping them. Ours, not PopTorch's.

        Args:
            use: True; False; or "fit": recomputes only as much as every device needs to fit Options.deviceMemoryLimit,
                with as little extra time as the search finds. "fit" recomputes nothing if everything fits or there is
                no limit, and includes the last stage.

        Results are the same bits. A stage keeps only its inputs, values that other stages read, values that
        recomputationCheckpoint marks, and values that cannot be made twice (running statistics). The last stage, whose
        backward follows at once, keeps everything under "1f1b" and "interleaved".

        Returns: self.
        """
        return self._call("recompute", use)


class ShardedExecution(_StageStrategy):
    """Stages run one after another: the memory of several devices without a pipeline's constraints."""

    _name = "ShardedExecution"


class _PhasedStrategy(_Strategy):
    """Arguments: phases in order. Each is a Phase, a list (of stages or block ids), a Stage or a block id."""

    def __init__(self, *phases: Any) -> None:
        self._phases = [item if isinstance(item, Phase) else Phase(*_items_of(item)) for item in phases]
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
