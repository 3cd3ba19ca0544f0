"""Wrapped models of the abele front end."""

import collections
import importlib
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from . import wrapping
from ._errors import user_error
from ._native import core, isCapturing
from ._one_at_a_time import one_at_a_time
from ._simulate import Simulation
from ._version import POPTORCH_VERSION
from ._whole_files import native_path
from .enums import AutoStage
from .executor import Executor, load_as
from .options import Options
from .strategies import PipelinedExecution

__all__ = ["CompiledModel", "explain", "inferenceModel", "isCapturing", "load", "trainingModel"]


class Report(dict[str, Any]):
    """The figures that report() returns; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        return core().notebookOfReport("Last step", json.dumps(self))


class CompiledModel(Executor):
    """A wrapped model. A call runs one step. Every shape of the inputs gets its own compiled program, and the programs
    share weights, optimizer state and random numbers.

    Threads: safe; calls of several threads run one after another.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._front_ns = collections.deque(maxlen=32)  # time of recent calls outside the native session
        super().__init__(*args, policy=core().Policy(), **kwargs)

    @one_at_a_time
    def graphText(self) -> str:
        """The graph after the passes, in text form."""
        return self._native.compiled("graphText").graphText()

    @one_at_a_time
    def planText(self) -> str:
        """Placement, schedule and memory, in text form."""
        return self._native.compiled("planText").planText()

    @one_at_a_time
    def executableText(self) -> str:
        """The compiled program, in text form."""
        return self._native.compiled("executableText").executableText()

    @one_at_a_time
    def memoryReport(self) -> dict[str, Any]:
        """The use of the devices' memory: by lifetime class and by layer, and the largest tensors.

        The bytes of each device equal those of report() and of a run. docs/memory.md lists the keys.

        Returns:
            {"devices": [{"device", "peak_bytes", "off_chip_bytes", "by_class": {...}, "layers": [...],
            "tensors": [...]}, ...]}; one entry a device of the first replica.
        Raises:
            abele.Error: E0705 for programs that were loaded or found in the cache.
        """
        return json.loads(self._native.compiled("memoryReport").memoryJson())

    @one_at_a_time
    def memoryText(self) -> str:
        """memoryReport() for people."""
        return self._native.compiled("memoryText").memoryText()

    def _run(self, args, kwargs):
        was_compiled = self.isCompiled()
        begin = time.perf_counter_ns()
        result = super()._run(args, kwargs)
        if was_compiled:
            self._front_ns.append(time.perf_counter_ns() - begin - self._native.compiled("a call").callNs())
        return result

    @one_at_a_time
    def report(self, path: str | os.PathLike[str] | None = None) -> Report:
        """Figures of the compiled program and of its last step. With a path it also writes them as a page.

        The page is one HTML file that needs no network: a timeline of the last call, device by device, beside the
        simulator's prediction; memory by class, layer and tensor; stages and options; and a text that says where the
        time goes and which changes are predicted to help. For a program that was loaded or found in the cache, costs
        and memory by class are unknown and left out.

        Args:
            path: path of the page, such as "report.html". Missing folders are made.
        Returns: see poptorch's report().
        Raises:
            abele.Error: E0705 before compilation; E0712, the file cannot be written.
        """
        figures = Report(super().report())
        if path is not None:
            kind = self._kind()
            core().writeReportPage(
                native_path(path),
                self._native.session(),
                title=f"{wrapping.user_class(self.model).__name__}, {kind}",
                kind=kind,
                options=[(name, str(value)) for name, value in sorted(self.options.toDict().items())],
                front_ns=self._median_front_ns(),
            )
        return figures

    @one_at_a_time
    def lossScale(self) -> float:
        """The factor of the next step's loss: the optimizer's loss_scaling times the factor of automatic loss scaling
        (opts.Training.setAutomaticLossScaling)."""
        return self._native.compiled("lossScale").lossScale()

    @one_at_a_time
    def costs(self) -> dict[str, Any]:
        """Times and memory of the stages, for simulate() and PipelinedExecution.costs().

        Times are medians over the last 32 calls, or come from capture before the first call. "machine" has the measured
        links between processes or accelerators. Keys: docs/simulator.md.

        Returns: {"hop_ns": 0, "stages": [{"forward_ns": ..., "stash_bytes": ..., ...}, ...], ...}.
        """
        costs = json.loads(self._native.compiled("costs").costs())
        costs["host_ns"] += self._median_front_ns()
        return costs

    def _kind(self):
        return "training" if self._training else "inference"

    def _median_front_ns(self):
        return max(0, round(statistics.median(self._front_ns))) if self._front_ns else 0

    @one_at_a_time
    def trace(self, path: str | os.PathLike[str], steps: int = 3) -> None:
        """Records the next calls, action by action: the work and the waiting of each device by micro-batch, the host's
        part, profiling's channels, and the simulator's prediction. docs/tracing.md.

        The file is in Chrome's trace format, which ui.perfetto.dev opens. It is complete after these calls, or at
        destroy().

        Args:
            path: path of the file. Missing folders are made.
            steps: number of calls, 1 or more.
        Raises:
            abele.Error: E0712 if the file cannot be made; E0708 if steps is less than 1.
        """
        importlib.import_module("._trace_file", __package__)  # from now on channels check whether a file records
        self._native.trace(os.fspath(path), steps)

    @one_at_a_time
    def simulate(self) -> Simulation:
        """The simulated step of this program under its own options, from costs(). Works even if the program cannot run,
        as with Options.useOfflineIpuTarget.

        Returns: a Simulation.
        """
        return Simulation(json.dumps(self.costs()), core().simulationOf(self._native.compiled("simulate")))

    @one_at_a_time
    def _repr_html_(self) -> str:
        """For notebooks: the stages of the last step, and a text that says where its time goes."""
        title = f"{wrapping.user_class(self.model).__name__}, {self._kind()}"
        if not self.isCompiled():
            return core().notebookOfModel(title)
        facts = core().factsOf(self._native.session())
        return core().notebookOfReport(title, json.dumps(super().report()), facts)


def trainingModel(
    model: torch.nn.Module, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> CompiledModel:
    """Wraps a module for training; see poptorch.trainingModel. Returns: a CompiledModel."""
    return CompiledModel(model, options, True, POPTORCH_VERSION, optimizer)


def inferenceModel(model: torch.nn.Module | Callable[..., Any], options: Options | None = None) -> CompiledModel:
    """Wraps a module for inference; see poptorch.inferenceModel. Returns: a CompiledModel."""
    return CompiledModel(model, options, False, POPTORCH_VERSION)


def staged_options(options, devices, micro_batches):
    """A copy of the options with this number of stages, and of micro-batches for an update, for other libraries.

    Args:
        options: None: the defaults.
        devices: number of stages to cut; None: use the model's blocks, or the strategy of the options.
    """
    result = Options() if options is None else options.clone()
    if devices is not None:
        result.setExecutionStrategy(PipelinedExecution(AutoStage.AutoSplit).devices(devices))
    if micro_batches != 1:
        result.Training.gradientAccumulation(micro_batches)
    return result


def load(
    filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], Any] | None = None, *, trust: bool = False
) -> CompiledModel:
    """An executor from a file that save() wrote, with its module, weights, optimizer and random state.

    Args:
        filename: the file.
        edit_opts_fn: see poptorch.load.
        trust: True says that you trust the file's author. The file holds the module as a pickle, and reading a pickle
            runs code that its author chose. `loadExecutable(filename)` of your own model runs no code of a file. Files
            of C++ programs hold no pickle.
    Returns: a CompiledModel.
    Raises:
        abele.Error: E0712 for a file that holds a module, without trust=True.
    """
    return load_as(CompiledModel, filename, edit_opts_fn, trust=trust)


def explain(model: CompiledModel) -> str:
    """The reasons for a compiled model's placement, as text: its stages with their lines of the program, predicted
    times and memory, and the predictions for other cuts, numbers of devices and schedules.

    Args:
        model: a compiled model of trainingModel or inferenceModel, in this package or poptorch, or a module that such a
            model trains.
    Returns: lines of text, which docs/placement.md explains.
    Raises:
        abele.Error: E0705 for programs that this process did not compile (loaded, or found in the cache); E0708 for
            other objects.
    """
    executor = model if isinstance(model, Executor) else None
    if isinstance(model, torch.nn.Module):
        executor = wrapping.trainer_of(model)
    if executor is None:
        raise user_error(
            "E0708",
            f"explain() of a {type(model).__name__}",
            expected="what trainingModel or inferenceModel returned",
            remedy="executor = abele.trainingModel(model, ...); executor(...); abele.explain(executor)",
        )
    return executor._native.compiled("explain").explain()
