"""What tracing channels record: the native module writes the file of this process (docs/tracing.md).

The environment variable PVTI_OPTIONS, a JSON object, switches it on: {"enable": "true", "directory": "."}. So does
trace() of a model, for as long as that records.
Source: spec environment.md, section 5; tools.md, PopVision.
"""

import json
import os
import sys
from multiprocessing import util

from ._native import core

_pids = set()  # of the processes that close their file at their end


def isRecording():
    """True if the file that PVTI_OPTIONS asks for, or the trace of a model, wants events of this process."""
    program = os.path.basename(sys.argv[0] or "python")
    is_traced = core().tracesProcess(program)
    if is_traced and os.getpid() not in _pids:
        _pids.add(os.getpid())
        # At the end of the interpreter, and of a process that multiprocessing started, which runs no exit handlers.
        util.Finalize(None, core().closeTraceOfProcess, exitpriority=-100)
    return is_traced or core().isTracing(program)


def add(name, channel, phase, **fields):
    """One event of now: name, category, kind and the fields that its kind has. Nothing if tracing is off."""
    if isRecording():
        core().traceEvent(name, channel, phase, core().traceClock(), json.dumps(fields))


class Span:
    """Context manager: what runs inside is one event. Threads: of one thread."""

    def __init__(self, name, channel):
        self._name = name
        self._channel = channel
        self._begin = None

    def __enter__(self):
        self._begin = core().traceClock()
        return self

    def __exit__(self, exc_type, value, traceback):
        if isRecording():
            core().traceSpan(self._name, self._channel, self._begin)
