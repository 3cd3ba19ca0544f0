"""Information about an executor's program and its last run.

Source: spec executor.md, section 8.
"""

import datetime
from typing import Any

import torch

from ._errors import Error, createPoptorchError, refused
from ._native import core
from ._one_at_a_time import one_at_a_time

_NO_COUNTERS = ("input", "input_complete", "output", "output_complete")


class Introspection:
    """Part of Executor."""

    @one_at_a_time
    def getTensorNames(self) -> list[str]:
        """Long names of the values of the compiled program, as anchorTensor takes them."""
        if not self.isCompiled():
            raise refused(AssertionError, "getTensorNames: the model is not compiled yet")
        return self._native.session().tensorNames()

    @one_at_a_time
    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """The value of the tensor of opts.anchorTensor(short_name, ...) in the last call."""
        if not self.isCompiled():
            raise refused(AssertionError, "getAnchoredTensor: the model has not run yet")
        try:
            return self._native.anchor(short_name)
        except Error as error:
            if error.code == "E0609":  # the value is refused, not the name
                raise
            raise refused(AssertionError, error.message) from error

    # Times of the last call ------------------------------------------------------------------------------------------
    @one_at_a_time
    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """When the tensors of the last call moved, in seconds since its begin.

        Returns: {"input", "input_complete", "output", "output_complete"}, each a list per tensor of a list per
            micro-batch. input: the host begins to prepare the inputs. input_complete: the devices can read them.
            output: the micro-batch's last stage has ended. output_complete: the call's results are complete on the
            host.
        """
        if not self.isCompiled():
            return {name: [[]] for name in _NO_COUNTERS}
        return self._native.session().perfCounters()

    @one_at_a_time
    def _latency(self, way):
        session = self._native.session()
        return (0.0, 0.0, 0.0) if session is None else session.latency(getattr(core().Way, way))

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """(min, max, average) seconds from the first request of an input until all inputs are complete."""
        return self._latency("HostToDevice")

    def getComputeLatency(self) -> tuple[float, float, float]:
        """(min, max, average) seconds from complete inputs until the last output is ready."""
        return self._latency("Compute")

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """(min, max, average) seconds from the first output that is ready until all are complete."""
        return self._latency("DeviceToHost")

    def getLatency(self) -> tuple[float, float, float]:
        """(min, max, average) seconds from the first request of an input until all outputs are complete."""
        return self._latency("All")

    @one_at_a_time
    def cycleCount(self) -> int:
        """Time of the last call in cycles of the original devices' clock (1.33 GHz)."""
        if not self._options._Popart.options.get("instrumentWithHardwareCycleCounter"):
            raise createPoptorchError("cycles are not counted\n  try       opts.logCycleCount(True) before compiling")
        cycles = self._native.compiled("cycleCount").cycles()
        if not cycles:
            raise createPoptorchError("no cycles are known yet\n  try       call the model once first")
        return cycles

    @one_at_a_time
    def report(self) -> dict[str, Any]:
        """Figures of the compiled program and of its last step.

        Returns: {"capture_s", "compile_s", "phases" (of compilation: pairs of name and seconds), "from_cache",
            "step_ns", "bubble" (share of worker time without work),
            "sent_bytes" (sent by this process in the last call: activations, gradients and their sums, results),
            "heap_allocations" (of tensor memory in the step), "workspace_bytes" (heap memory of kernels),
            "shared_weight_bytes" (the model's own memory that the devices use),
            "off_chip_bytes" (over all devices), "off_chip_file_bytes" (the part of it in a file), "schedule",
            "schedule_reason" (why it was chosen; empty if the user chose it), "links" (between memories, and
            where their times are from; empty if all devices share one memory), "stages": a list of
            {"name", "device", "busy_ns", "waiting_ns", "peak_bytes" (planned), "mapped_bytes" (of its device),
            "resident_bytes" (the part of mapped_bytes that is in memory by now; on an accelerator also the memory of
            its captured graphs and of off-chip tensors there)}}.
        Source: ours.
        """
        return self._native.compiled("report").report()

    @one_at_a_time
    def compilationTime(self) -> datetime.timedelta:
        """The time of capture and compilation."""
        session = self._native.compiled("compilationTime")
        if not self._options.show_compilation_progress_bar:
            raise createPoptorchError("compilationTime() needs opts.showCompilationProgressBar(True)")
        report = session.report()
        return datetime.timedelta(seconds=report["capture_s"] + report["compile_s"])
