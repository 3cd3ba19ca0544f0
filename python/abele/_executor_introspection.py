"""What an executor tells about its program and its last run.

Source: spec executor.md, section 8.
"""

import datetime

from ._errors import Error, createPoptorchError, refused
from ._native import core
from ._one_at_a_time import oneAtATime

_NO_COUNTERS = ("input", "input_complete", "output", "output_complete")


class Introspection:
    """Part of Executor."""

    @oneAtATime
    def getTensorNames(self):
        """Long names of the values of the compiled program, as anchorTensor takes them."""
        if not self.isCompiled():
            raise refused(AssertionError, "getTensorNames: the model is not compiled yet")
        return self._native.session().tensorNames()

    @oneAtATime
    def getAnchoredTensor(self, short_name):
        """Value, in the last call, of the tensor that opts.anchorTensor(short_name, ...) named."""
        if not self.isCompiled():
            raise refused(AssertionError, "getAnchoredTensor: the model has not run yet")
        try:
            return self._native.anchor(short_name)
        except Error as error:
            if error.code == "E0609":  # its value, not its name
                raise
            raise refused(AssertionError, error.message) from error

    # Times of the last call ------------------------------------------------------------------------------------------
    @oneAtATime
    def getPerfCounters(self):
        """When the tensors of the last call moved, in seconds since its begin.

        Returns: {"input", "input_complete", "output", "output_complete"}, each a list per tensor of a list per
            micro-batch: the host begins to make the call's inputs ready, the devices can read them; the micro-batch's
            last stage has ended, the call's results are complete on the host.
        """
        if not self.isCompiled():
            return {name: [[]] for name in _NO_COUNTERS}
        return self._native.session().perfCounters()

    @oneAtATime
    def _latency(self, way):
        session = self._native.session()
        return (0.0, 0.0, 0.0) if session is None else session.latency(getattr(core().Way, way))

    def getHostIpuLatency(self):
        """(min, max, average) seconds from the first request of an input until all inputs are complete."""
        return self._latency("HostToDevice")

    def getComputeLatency(self):
        """(min, max, average) seconds from complete inputs until the last output is ready."""
        return self._latency("Compute")

    def getIpuHostLatency(self):
        """(min, max, average) seconds from the first output that is ready until all are complete."""
        return self._latency("DeviceToHost")

    def getLatency(self):
        """(min, max, average) seconds from the first request of an input until all outputs are complete."""
        return self._latency("All")

    @oneAtATime
    def cycleCount(self):
        """Cycles of the last call, at the clock of the original devices (1.33 GHz): its time, in other units."""
        if not self._options._Popart.options.get("instrumentWithHardwareCycleCounter"):
            raise createPoptorchError("cycles are not counted\n  try       opts.logCycleCount(True) before compiling")
        cycles = self._native.compiled("cycleCount").cycles()
        if not cycles:
            raise createPoptorchError("no cycles are known yet\n  try       call the model once first")
        return cycles

    @oneAtATime
    def report(self):
        """Figures of the compiled program and of its last step.

        Returns: {"capture_s", "compile_s", "phases" (of compilation: pairs of name and seconds), "from_cache",
            "step_ns", "bubble" (share of worker time without work),
            "sent_bytes" (by this process to others in the last call: activations, gradients and their sums, results),
            "heap_allocations" (of tensor memory in the step), "workspace_bytes" (of kernels, on the heap),
            "shared_weight_bytes" (of the model's own memory that the devices work in),
            "off_chip_bytes" (of all devices), "off_chip_file_bytes" (how much of it is in a file), "schedule",
            "schedule_reason" (why it was taken; empty where it was asked for), "stages": a list of
            {"name", "device", "busy_ns", "waiting_ns", "peak_bytes" (planned), "mapped_bytes" (of its device),
            "resident_bytes" (of these, what is in memory by now; on an accelerator also what its captured graphs hold
            and what off-chip tensors take there)}}.
        Source: ours.
        """
        return self._native.compiled("report").report()

    @oneAtATime
    def compilationTime(self):
        """How long capture and compilation took."""
        session = self._native.compiled("compilationTime")
        if not self._options.show_compilation_progress_bar:
            raise createPoptorchError("compilationTime() needs opts.showCompilationProgressBar(True)")
        report = session.report()
        return datetime.timedelta(seconds=report["capture_s"] + report["compile_s"])
