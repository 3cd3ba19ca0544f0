"""Reads of memory past torch's operators, while a forward is captured.

The memory of values that may differ between calls is locked meanwhile (src/capture/storage_table.h): torch refuses to
give its address, whoever asks. Here such an error becomes E0101 with the user's line.
"""

import contextlib
import functools
import os
import sys
import threading
import traceback

import torch

from ._errors import Error, userError
from ._item_access import exchanged
from ._native import core, isCapturing

_READERS = ("numpy", "tolist")


def _reading(name, original):
    def method(self, *args, **kwargs):
        if not isCapturing():  # another thread, perhaps with weights of the model that is being captured
            with core().Opened(self):
                return original(self, *args, **kwargs)
        held = core().readValue(self, f"{name}()")
        result = original(held, *args, **kwargs)
        if held is not self and name == "numpy":
            result.flags.writeable = False  # a copy: what is written into it would get lost
        return result

    return method


def noticedReads():
    """Around forward: numpy() and tolist() say themselves that they read, so that they can be named."""
    names = [name for name in _READERS if name not in vars(torch.Tensor)]
    return exchanged(*((torch.Tensor, name, functools.partial(_reading, name)) for name in names))


def _forForward(function):
    work = core().Work()

    def call(*args, **kwargs):
        with work:
            return function(*args, **kwargs)

    return call


def _starting(original):
    def start(thread):
        if isCapturing():
            thread.run = _forForward(thread.run)
        return original(thread)

    return start


def _submitting(original):
    def submit(pool, function, *args, **kwargs):
        return original(pool, _forForward(function) if isCapturing() else function, *args, **kwargs)

    return submit


def threadsOfForward():
    """Around forward: threads that it starts or that a pool runs for it work for it; they may not read weights."""
    places = [(threading.Thread, "start", _starting)]
    for module, name, methods in (
        ("concurrent.futures.thread", "ThreadPoolExecutor", ["submit"]),
        ("multiprocessing.pool", "ThreadPool", ["apply_async", "_map_async"]),
    ):
        if module in sys.modules:
            places += [(getattr(sys.modules[module], name), method, _submitting) for method in methods]
    return exchanged(*places)


def userLine(frames, excludes):
    """ "train.py:88": the first of these (frame, line) whose code is the user's; "" if there is none.

    Args:
        excludes: parts of the names of files that are not the user's.
    """
    for frame, line in frames:
        name = frame.f_code.co_filename
        if not name.startswith("<frozen") and not any(part in name for part in excludes):
            return f"{os.path.basename(name)}:{line}"
    return ""


def _isLockedRead(error):
    return not isinstance(error, Error) and core().LOCKED_READ in str(error)


def _refusal(error, excludes):
    line = userLine(reversed(list(traceback.walk_tb(error.__traceback__))), excludes)
    return userError(
        "E0101",
        "forward reads a tensor's memory past torch's operators while it is being captured",
        at=line,
        found="a value that depends on the inputs, the weights or random numbers",
        expected="operators of torch, on the thread that runs forward",
        remedy="stay in torch, call the function through poptorch.CPU, or compute this before the call and pass the "
        "result as an input",
    )


@contextlib.contextmanager
def typedReads(excludes):
    """Around forward: reads of locked memory, on any thread, end in E0101.

    Args:
        excludes: parts of the names of files that are not the user's.
    """
    elsewhere = []
    excepthook = threading.excepthook

    def note(args):
        if _isLockedRead(args.exc_value):
            elsewhere.append(args.exc_value)
        else:
            excepthook(args)

    threading.excepthook = note
    try:
        yield
    except Exception as error:
        if _isLockedRead(error):
            raise _refusal(error, excludes) from error
        if elsewhere and not isinstance(error, Error):
            raise _refusal(elsewhere[0], excludes) from error
        raise
    finally:
        threading.excepthook = excepthook
    if elsewhere:
        raise _refusal(elsewhere[0], excludes) from elsewhere[0]
