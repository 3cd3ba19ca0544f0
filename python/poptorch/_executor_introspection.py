"""What an executor tells about its program and its last run.

Source: spec executor.md, section 8.
"""

import datetime

from ._errors import createPoptorchError


class Introspection:
    """Part of PoplarExecutor."""

    def report(self):
        """Figures of the compiled program and of its last step, a dict: "capture_s", "compile_s", "step_ns", "bubble"
        (share of worker time without work), "heap_allocations" (of tensor memory in the step) and "stages", each with
        "name", "device", "busy_ns", "waiting_ns" and "peak_bytes". Source: ours."""
        self._requireCompiled("report")
        return self._executable.session.report()

    def compilationTime(self):
        """How long capture and compilation took."""
        self._requireCompiled("compilationTime")
        if not self._options.show_compilation_progress_bar:
            raise createPoptorchError("compilationTime() needs opts.showCompilationProgressBar(True)")
        report = self._executable.session.report()
        return datetime.timedelta(seconds=report["capture_s"] + report["compile_s"])
