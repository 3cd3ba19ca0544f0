"""What tracing channels record: the native module writes the file of this process (docs/tracing.md).

Tracing is switched on by the environment variable PVTI_OPTIONS, a JSON object: {"enable": "true", "directory": "."}.
Source: spec environment.md, section 5; tools.md, PopVision.
"""

import json
import os
import sys
from multiprocessing import util

from ._native import core

_pids = set()  # of the processes that close their file at their end


def recorder():
    """The native file of this process, or None if tracing is off. Once on it stays on."""
    file = core().traceFile(os.path.basename(sys.argv[0] or "python"))
    if file is not None and os.getpid() not in _pids:
        _pids.add(os.getpid())
        # At the end of the interpreter, and of a process that multiprocessing started, which runs no exit handlers.
        util.Finalize(None, file.close, exitpriority=-100)
    return file


def add(name, channel, phase, **fields):
    """One event of now: name, category, kind and the fields that its kind has. Nothing if tracing is off."""
    file = recorder()
    if file is not None:
        file.add(name, channel, phase, core().traceClock(), json.dumps(fields))


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
        file = recorder()
        if file is not None:
            file.addSpan(self._name, self._channel, self._begin)
