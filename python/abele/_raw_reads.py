"""Refuses reads of memory without torch's operators while a forward is captured.

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


def _copying(original):
    """Handles copy.deepcopy of a tensor of the program, because torch copies the tensor's storage."""

    def deepcopy(tensor, memo):
        if id(tensor) in memo or not tensor.is_leaf or not core().isCaptured(tensor):
            return original(tensor, memo)
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    return deepcopy


def add_reads(rules):
    """Rules for forward: functions that read a tensor's memory report it, so that messages name them and reads of
    weights raise."""
    for name in _READERS:
        rules.add(getattr(torch.Tensor, name), functools.partial(_reading, name))
    rules.add(torch.Tensor.__deepcopy__, _copying)


def _user_line(error, excludes):
    """ "train.py:88": the innermost line of the traceback whose code is the user's; or ""."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        name = frame.f_code.co_filename
        if not name.startswith("<frozen") and not any(part in name for part in excludes):
            return f"{os.path.basename(name)}:{line}"
    return ""


@contextlib.contextmanager
def typed_reads(excludes):
    """A context around forward in which reads of locked memory raise E0101.

    Args:
        excludes: parts of the names of files that are not the user's.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, Error) or core().LOCKED_READ not in str(error):
            raise
        raise user_error(
            "E0101",
            "forward reads a tensor's memory past torch's operators while it is being captured",
            at=_user_line(error, excludes),
            found="a value that depends on the inputs, the weights or random numbers",
            expected="operators of torch, on the thread that runs forward",
            remedy="stay in torch, call the function through poptorch.CPU, or compute this before the call and pass "
            "the result as an input",
        ) from error
