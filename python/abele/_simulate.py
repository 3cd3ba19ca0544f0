"""Predicts a pipeline before it runs."""

import json
import os
from typing import Any

from ._errors import refused
from ._native import core
from ._whole_files import write_text

__all__ = ["Simulation", "simulate"]


class Simulation(dict):
    """The figures of a simulated step, as in docs/simulator.md: "step_ns", "bubble", "peak_bytes", "held" (the largest
    number of micro-batches that each stage keeps) and "workers" (one dict per device)."""

    def __init__(self, costs, options):
        self._costs, self._options = costs, options
        super().__init__(json.loads(self._run().json))

    def chart(self) -> str:
        """The schedule as text: a line per device, and one slot per action."""
        return self._run(chart=True).chart

    def writeTrace(self, path: str | os.PathLike[str]) -> None:
        """Writes the step in Chrome's trace format (chrome://tracing, Perfetto)."""
        write_text(path, self.traceText())

    def traceText(self) -> str:
        """The text that writeTrace() writes."""
        return self._run(trace=True).trace

    def _repr_html_(self) -> str:
        """For notebooks: a drawing of the step, and a row per device."""
        return core().notebookOfSimulation(json.dumps(self), self.traceText())

    def _run(self, chart=False, trace=False):
        self._options.with_chart, self._options.with_trace = chart, trace
        return core().simulate(self._costs, self._options)


def simulate(
    costs: Any,
    schedule: str = "1f1b",
    micro_batches: int = 1,
    *,
    device_iterations: int = 1,
    training: bool = True,
    devices: int = 0,
    chunks: int = 1,
    hop_ns: Any = None,
    device_bytes: Any = None,
    machine: Any = None,
    replicas: Any = None,
) -> Simulation:
    """Times a schedule on described stages.

    Args:
        costs: result of CompiledModel.costs(), or a list with a dict per stage: "forward_ns", "backward_ns" (without
            "weight_grad_ns"), "weight_grad_ns", "update_ns", "persistent_bytes", "stash_bytes", "transient_bytes",
            "forward_bytes", "backward_bytes", "gradient_bytes", "device", "repeat"; all optional.
        schedule: a word that PipelinedExecution.schedule takes, such as "1f1b", or "sharded". Inference has only one.
        micro_batches: of an update; in inference, of a call.
        device_iterations: updates of a step.
        training: False times forwards only.
        devices: number of devices that share the stages as evenly as possible; 0: as the costs say.
        chunks: stages of each device, with `devices`.
        hop_ns: time of a value from device to device; None: as the costs say.
        device_bytes: memory of a device, or a dict of device number -> bytes. The result and each of its workers then
            have "fits" and, if there is a limit, "spare_bytes" (negative: this many are missing).
        machine: a dict that describes memories and links (docs/simulator.md, "Machines"). Handovers and the sums of
            replicas then take time. None: as the costs say.
        replicas: copies of the whole pipeline, each on its own devices; None: as the costs say. They take time only if
            a machine has links.
    Returns: a Simulation.
    Raises:
        abele.Error: E0404 for costs that cannot be read or contradict each other.
    """
    known = (*core().Schedule.__members__, "sharded")
    if schedule not in known:
        raise refused(AssertionError, f"there is no schedule {schedule!r}; known: {', '.join(known)}")
    costs = dict(costs) if isinstance(costs, dict) else {"stages": list(costs)}
    for key, value in (("hop_ns", hop_ns), ("machine", machine), ("replicas", replicas)):
        if value is not None:
            costs[key] = value
    options = core().SimulationOptions()
    options.sharded = schedule == "sharded"
    if not options.sharded:
        options.schedule = getattr(core().Schedule, schedule)
    options.training = training
    options.device_iterations = device_iterations if training else micro_batches
    options.gradient_accumulation = micro_batches if training else 1
    options.devices = devices
    options.chunks = chunks
    if isinstance(device_bytes, dict):
        options.bytes_of_device = {device: int(size) for device, size in device_bytes.items()}
    elif device_bytes is not None:
        options.device_bytes = int(device_bytes)
    return Simulation(json.dumps(costs), options)
