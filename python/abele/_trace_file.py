"""What tracing channels record, and the file it goes to: JSON of the Chrome trace event format (docs/tracing.md).

Tracing is switched on by the environment variable PVTI_OPTIONS, a JSON object: {"enable": "true", "directory": "."}.
Source: spec environment.md, section 5; tools.md, PopVision.
"""

import json
import os
import sys
import threading
import time
from multiprocessing import util

from ._errors import refused

_lock = threading.RLock()
_recorder = None


def _options():
    """The folder of the trace file, or None if tracing is off.

    Raises:
        ValueError: PVTI_OPTIONS is no JSON object.
    """
    text = os.environ.get("PVTI_OPTIONS", "")
    if not text:
        return None
    try:
        options = json.loads(text)
        is_on = str(options.get("enable", "false")).lower() == "true"
    except (ValueError, AttributeError):
        raise refused(
            ValueError, f'PVTI_OPTIONS is {text!r}, expected a JSON object such as {{"enable":"true"}}'
        ) from None
    return options.get("directory", ".") if is_on else None


def recorder():
    """The recorder of this process, or None if tracing is off. Once on it stays on."""
    if _recorder is not None and _recorder.pid == os.getpid():
        return _recorder
    return _newRecorder() if "PVTI_OPTIONS" in os.environ else None


def _newRecorder():
    global _recorder
    with _lock:
        if _recorder is None or _recorder.pid != os.getpid():
            folder = _options()
            _recorder = None if folder is None else Recorder(folder)
        return _recorder


class Recorder:
    """Writes events as they end. Threads: safe.

    Args:
        folder: made if absent; the file is named by date and process, as PopVision's are.
    """

    def __init__(self, folder):
        os.makedirs(folder, exist_ok=True)
        self.pid = os.getpid()
        date = time.strftime("%a_%b_%d_%H:%M:%S_%Y_GMT", time.gmtime())
        self.path = os.path.join(folder, f"{date}_{self.pid}.pvti")
        self._file = open(self.path, "w", encoding="utf-8")
        self._file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        name = {"name": os.path.basename(sys.argv[0] or "python")}
        self._file.write(json.dumps({"name": "process_name", "ph": "M", "pid": self.pid, "tid": 0, "args": name}))
        # Runs at the end of the interpreter and of a process that multiprocessing started.
        util.Finalize(None, self.close, exitpriority=-100)

    def add(self, name, channel, phase, **fields):
        """One event: name, category, kind and the fields that its kind has."""
        event = {
            "name": name,
            "cat": channel,
            "ph": phase,
            "ts": time.perf_counter_ns() / 1000,
            "pid": self.pid,
            "tid": threading.get_native_id(),
            **fields,
        }
        with _lock:
            if not self._file.closed:
                self._file.write(",\n" + json.dumps(event))

    def close(self):
        """Completes the file."""
        with _lock:
            if not self._file.closed and self.pid == os.getpid():
                self._file.write("\n]}\n")
                self._file.close()


class Span:
    """Context manager: what runs inside is one event. Threads: of one thread."""

    def __init__(self, name, channel):
        self._name = name
        self._channel = channel
        self._begin = None

    def __enter__(self):
        self._begin = time.perf_counter_ns()
        return self

    def __exit__(self, exc_type, value, traceback):
        target = recorder()
        if target is not None:
            begin = self._begin / 1000
            target.add(self._name, self._channel, "X", ts=begin, dur=time.perf_counter_ns() / 1000 - begin)
