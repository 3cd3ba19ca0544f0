"""Reads of memory past torch's operators, while a forward is captured.

Forward computes values that may differ between calls. Their memory is locked meanwhile (src/capture/storage_table.h):
torch refuses to give its address to any caller. Here such an error becomes E0101 with the user's line. Weights are not
locked, because other threads use them.
"""

import contextlib
import functools
import os
import traceback

import torch

from ._errors import Error, user_error
from ._native import core

_READERS = ("numpy", "tolist", "__array__", "__dlpack__", "data_ptr")


def _reading(name, original):
    def method(self, *args, **kwargs):
        held = core().readValue(self, f"{name}()")
        if name == "data_ptr":
            return original(self)  # a copy would not live as long as its address
        result = original(held, *args, **kwargs)
        if held is not self and name in ("numpy", "__array__"):
            result.flags.writeable = False  # a copy: what is written into it would get lost
        return result

    return method


def add_reads(rules):
    """Rules for forward: what reads a tensor's memory says so, so that it can be named, and weights are not read."""
    for name in _READERS:
        rules.add(getattr(torch.Tensor, name), functools.partial(_reading, name))


def user_line(frames, excludes):
    """ "train.py:88": the first of these (frame, line) whose code is the user's; "" if there is none.

    Args:
        excludes: parts of the names of files that are not the user's.
    """
    for frame, line in frames:
        name = frame.f_code.co_filename
        if not name.startswith("<frozen") and not any(part in name for part in excludes):
            return f"{os.path.basename(name)}:{line}"
    return ""


def _is_locked_read(error):
    return not isinstance(error, Error) and core().LOCKED_READ in str(error)


def _refusal(error, excludes):
    line = user_line(reversed(list(traceback.walk_tb(error.__traceback__))), excludes)
    return user_error(
        "E0101",
        "forward reads a tensor's memory past torch's operators while it is being captured",
        at=line,
        found="a value that depends on the inputs, the weights or random numbers",
        expected="operators of torch, on the thread that runs forward",
        remedy="stay in torch, call the function through poptorch.CPU, or compute this before the call and pass the "
        "result as an input",
    )


@contextlib.contextmanager
def typed_reads(excludes):
    """Around forward: reads of locked memory end in E0101.

    Args:
        excludes: parts of the names of files that are not the user's.
    """
    try:
        yield
    except Exception as error:
        if _is_locked_read(error):
            raise _refusal(error, excludes) from error
        raise
