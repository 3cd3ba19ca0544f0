"""Operators for use inside a model. They work the same on the host.

Source: spec annotations.md, section 4.
"""

import torch

from ._errors import userError
from ._native import core, isCapturing


def _requireTensor(function, tensor):
    if not isinstance(tensor, torch.Tensor):
        raise userError("E0708", "arguments", f"{function} of a {type(tensor).__name__}", expected="a tensor")


def isRunningOnIpu():
    """True while a model's forward is captured for a device, False elsewhere."""
    return isCapturing()


def nop(tensor):
    """A copy of the tensor."""
    _requireTensor("nop", tensor)
    return tensor.clone()


def set_available_memory(tensor, available_memory_proportion):
    """The tensor itself. The share (0..1) of memory for the operation that made it is a hint."""
    _requireTensor("set_available_memory", tensor)
    if not 0 <= available_memory_proportion <= 1:
        raise userError(
            "E0702",
            "option-value",
            f"available memory proportion is {available_memory_proportion}",
            expected="a number in 0..1",
        )
    return tensor


def recomputationCheckpoint(*tensors):
    """The tensors themselves: one for one, a tuple for several, the same container for a list or tuple.

    Their values are kept for the backward pass rather than computed again.
    """
    values = tensors[0] if len(tensors) == 1 else tensors
    for value in values if isinstance(values, (list, tuple)) else [values]:
        if not isinstance(value, torch.Tensor):
            raise ValueError(f"recomputationCheckpoint of a {type(value).__name__}: expected tensors")
    if isCapturing():
        for value in values if isinstance(values, (list, tuple)) else [values]:
            core().keepValue(value)
    return values
