"""Rules and warnings for the tensors that an executor returns.

Source: spec executor.md, section 3.
"""

import collections
import contextlib
import functools
import types
import warnings

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ._errors import createPoptorchError
from ._logging import logger
from ._native import core
from ._objects import closed_in, tensors_in
from .structures import containers_in, other_leaves, own_attributes

_returned = WeakIdKeyDictionary()


def _install_backward():
    original = torch.Tensor.backward

    @functools.wraps(original)
    def backward(self, *args, **kwargs):
        if not self.requires_grad and self in _returned:
            raise createPoptorchError(
                "backward() of a result of a wrapped model: the step has run backward already\n"
                "  try       leave backward() and step() out: a training model updates its weights by itself"
            )
        return original(self, *args, **kwargs)

    torch.Tensor.backward = backward


_install_backward()


def mark_returned(tensors):
    """Remembers results of a call for as long as they live. None: another process gets the result."""
    for tensor in tensors:
        if tensor is not None:
            _returned[tensor] = True


def _filled_cells(function):
    """The values of the variables around a function, except empty ones."""
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents


def _held_tensors(value):
    """The tensors in an object of a class that calls do not rebuild."""
    if isinstance(value, (str, bytes, torch.Tensor, torch.nn.Module, type)):
        return []
    held = list(getattr(value, "__dict__", {}).values())
    if isinstance(value, types.FunctionType):
        held += _filled_cells(value)
    if isinstance(value, (collections.abc.Set, collections.deque, list)):
        held += value
    held += tensors_in(value)
    return [item for item in held if isinstance(item, torch.Tensor)]


def warn_of_hidden_tensors(result):
    """Warns about objects in the result of a captured forward if later calls do not update their tensors."""
    for leaf in other_leaves(result):
        if any(core().valueId(tensor) >= 0 for tensor in _held_tensors(leaf)):
            logger.warning(
                "forward returns a %s with tensors inside: every call returns those of the compilation; register a "
                "parser for the class (poptorch.registerCustomArgParser), or return a tuple, a list or a dict",
                type(leaf).__name__,
            )


def warn_of_subclasses(tensors):
    """Warns about inputs of tensor classes with their own behaviour, because forward gets plain tensors."""
    plain = torch.Tensor.__torch_function__.__func__
    kinds = {type(tensor) for tensor in tensors} - {torch.Tensor, torch.nn.Parameter}
    for kind in sorted(kinds, key=lambda kind: kind.__qualname__):
        if getattr(kind.__torch_function__, "__func__", None) not in (plain, None):
            logger.warning(
                "an input is a tensor of the class %s, which has a __torch_function__ of its own: forward gets plain "
                "tensors of the same values, and returns such; pass plain tensors, and make the class in forward",
                kind.__qualname__,
            )


def warn_of_held_tensors(arguments, *, are_opened):
    """Warns about objects among the arguments of forward whose tensors are constants of the program."""
    leaves = closed_in(arguments) if are_opened else other_leaves(arguments)
    holders = [leaf for leaf in leaves if _held_tensors(leaf)]
    holders += [one for one in containers_in(arguments) if _held_tensors(list(own_attributes(one).values()))]
    for holder in holders:
        logger.warning(
            "an argument of forward is a %s with tensors inside, which are constants of the program: register a "
            "parser for the class (poptorch.registerCustomArgParser), pass a tuple, a list or a dict%s",
            type(holder).__name__,
            "" if are_opened else ", or use the package abele, where tensors of objects are inputs",
        )


def warn_of_host_tensors(tensors):
    """Warns about results of a captured forward that are not values of the program."""
    for index, tensor in enumerate(tensors):
        if core().valueId(tensor) < 0:
            warnings.warn(
                f"result {index} of forward, a tensor of shape {list(tensor.shape)}, is on the host: every call "
                "returns it as it is now",
                stacklevel=2,
            )
