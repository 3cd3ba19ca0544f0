"""The record of tracing channels: the native module writes this process's file (docs/tracing.md).

The environment variable PVTI_OPTIONS, a JSON object, switches it on: {"enable": "true", "directory": "."}. So does
trace() of a model while it records.
Source: spec environment.md, section 5; tools.md, PopVision.
"""

import json
import os
import sys
from multiprocessing import util

from ._native import core

_pids = set()  # ids of the processes that close their file at their end


def is_recording():
    """True if the file of PVTI_OPTIONS, or the trace of a model, records the events of this process."""
    program = os.path.basename(sys.argv[0] or "python")
    is_traced = core().tracesProcess(program)
    if is_traced and os.getpid() not in _pids:
        _pids.add(os.getpid())
        # Runs at the end of the interpreter, and of multiprocessing's processes, which do not run exit handlers.
        util.Finalize(None, core().closeTraceOfProcess, exitpriority=-100)
    return is_traced or core().isTracing(program)


def add(name, channel, phase, **fields):
    """Adds one event at the present time: name, category, kind and the fields of its kind. No effect if tracing is
    off."""
    if is_recording():
        core().traceEvent(name, channel, phase, core().traceClock(), json.dumps(fields))


class Span:
    """Context manager: one event for the code inside. Threads: enter and leave it on one thread."""

    def __init__(self, name, channel):
        self._name = name
        self._channel = channel
        self._begin = None

    def __enter__(self):
        self._begin = core().traceClock()
        return self

    def __exit__(self, exc_type, value, traceback):
        if is_recording():
            core().traceSpan(self._name, self._channel, self._begin)
