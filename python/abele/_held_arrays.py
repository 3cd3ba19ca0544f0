"""Arrays and pointers over the memory of weights, which forward can read past torch."""

import ctypes
import inspect
import sys

import torch

from ._frozen import filledCells
from ._logging import logger
from ._support import extentOf

_POINTERS = (ctypes.Array, ctypes._SimpleCData, ctypes.Structure, ctypes._Pointer)


def _rangeOf(value):
    """(first address, the one behind the last) of what an object looks at; None: it looks at no memory."""
    if isinstance(value, ctypes._Pointer):
        value = value.contents if value else None
    if isinstance(value, _POINTERS):
        return ctypes.addressof(value), ctypes.addressof(value) + ctypes.sizeof(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, memoryview):
        value = numpy.asarray(value)
    if numpy is None or not isinstance(value, numpy.ndarray) or value.size == 0:
        return None
    steps = [(n - 1) * stride for n, stride in zip(value.shape, value.strides, strict=True)]
    first = value.__array_interface__["data"][0]
    return first + sum(min(step, 0) for step in steps), first + sum(max(step, 0) for step in steps) + value.itemsize


def _held(name, value, depth=0):
    """(name, value) of an object, and of those in lists and dictionaries."""
    if depth < 3 and isinstance(value, list | tuple | dict):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in inner:
            yield from _held(f"{name}[{key!r}]", one, depth + 1)
    else:
        yield name, value


def _namesOf(model):
    """(name, value) of what forward can read without an argument: attributes of modules, and what their code names."""
    seen = set()
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if not name.startswith("_") or isinstance(value, _POINTERS) or type(value).__name__ == "ndarray":
                yield from _held(f"{path}.{name}".lstrip("."), value)
        function = inspect.getattr_static(type(module), "forward", None)  # of TorchScript's classes: a descriptor
        function = getattr(function, "__wrapped__", function)
        if function in seen or not hasattr(function, "__code__"):
            continue
        seen.add(function)
        for name in function.__code__.co_names:
            yield from _held(name, function.__globals__.get(name))
        for name, cell in filledCells(function):
            yield from _held(name, cell.cell_contents)


def warnOfHeldArrays(model, tensors):
    """Names arrays that share memory with a tensor of the model: the program sees what they hold now.

    Args:
        tensors: (name, tensor, _) of the model.
    """
    memory = []
    for name, tensor, _ in tensors:
        if tensor.is_cpu and tensor.layout == torch.strided and tensor.numel() > 0:
            end = tensor.data_ptr() + extentOf(tensor) * tensor.element_size()
            memory.append((tensor.data_ptr(), end, name))
    for name, value in _namesOf(model):
        found = _rangeOf(value)
        shared = next((of for begin, end, of in memory if begin < found[1] and found[0] < end), None) if found else None
        if shared:
            logger.warning(
                "%s lies in the memory of %s: numbers that forward reads from it are constants of the program, "
                "whatever %s becomes; read the tensor itself",
                name,
                shared,
                shared,
            )
