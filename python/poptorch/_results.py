"""What the tensors that an executor returned can and cannot do.

Source: spec executor.md, section 3.
"""

import functools
import warnings

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ._errors import createPoptorchError
from ._native import core

_returned = WeakIdKeyDictionary()


def _installBackward():
    original = torch.Tensor.backward

    @functools.wraps(original)
    def backward(self, *args, **kwargs):
        if not self.requires_grad and self in _returned:
            raise createPoptorchError(
                "backward() of a tensor that an executor returned\n"
                "  try       leave backward() and step() out: a training model updates its weights by itself"
            )
        return original(self, *args, **kwargs)

    torch.Tensor.backward = backward


_installBackward()


def markReturned(tensors):
    """Remembers results of a call for as long as they live."""
    for tensor in tensors:
        _returned[tensor] = True


def warnOfHostTensors(tensors):
    """Warns about results of a captured forward that are no values of the program."""
    for index, tensor in enumerate(tensors):
        if core().valueId(tensor) < 0:
            warnings.warn(
                f"result {index} of forward, a tensor of shape {list(tensor.shape)}, is on the host: every call "
                "returns it as it is now",
                stacklevel=2,
            )
