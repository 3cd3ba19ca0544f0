"""t[a:b] and t[i] with integer tensors whose values may change between runs.

Source: spec annotations.md, section 6.
"""

import contextlib

import torch

from ._errors import userError
from ._item_access import itemAccess
from ._native import core


def _sizeOf(tensor, bounds):
    """Length of tensor[bounds] where a bound is a tensor: what the program adds to come from one to the other."""
    start, stop = bounds.start, bounds.stop
    size = None
    if isinstance(start, torch.Tensor) and isinstance(stop, torch.Tensor):
        size = core().constantDifference(start, stop)
    if size is None or size <= 0:
        raise userError(
            "E0101",
            "data-dependent",
            "a slice whose length is not a constant",
            found=f"t[start:stop] of a tensor of shape {tuple(tensor.shape)}",
            expected="tensor bounds with stop = start + a constant above 0",
            remedy="poptorch.dynamic_slice(tensor, dim, start, size, step)",
        )
    return size


def _varies(bound):
    return isinstance(bound, torch.Tensor) and core().mayVary(bound)


def _isPosition(item):
    """Torch takes an integer tensor without dimensions for a number, and would read it."""
    return (
        isinstance(item, torch.Tensor)
        and item.dim() == 0
        and item.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
        and _varies(item)
    )


def _isBasic(item):
    return item is None or item is Ellipsis or (isinstance(item, (int, slice)) and not isinstance(item, bool))


def _atPositions(tensor, items, get_item):
    """(a view of tensor, an index for aten::index): together what the items name. None where they do not suit."""
    if not all(_isBasic(item) or _isPosition(item) for item in items):
        return None
    known = sum(1 for item in items if item is not None and item is not Ellipsis)
    index = []
    for item in items:
        if item is Ellipsis:
            index += [None] * (tensor.dim() - known)
        elif item is None or isinstance(item, slice):
            index.append(None)
        elif isinstance(item, torch.Tensor):
            index.append(item.long())
    return get_item(tensor, tuple(slice(None) if isinstance(i, torch.Tensor) else i for i in items)), index


@contextlib.contextmanager
def indexingByTensors():
    """Around forward."""
    original, original_set = torch.Tensor.__getitem__, torch.Tensor.__setitem__

    def setItem(self, index, value):
        items = index if isinstance(index, tuple) else (index,)
        found = _atPositions(self, items, original) if any(map(_isPosition, items)) else None
        if found is None:
            return original_set(self, index, value)
        view, positions = found
        value = value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value, dtype=self.dtype)
        torch.ops.aten.index_put_(view, positions, value.to(self.dtype))

    def getItem(self, index):
        items = index if isinstance(index, tuple) else (index,)
        found = _atPositions(self, items, original) if any(map(_isPosition, items)) else None
        if found is not None:
            return torch.ops.aten.index(*found)
        if not any(isinstance(item, slice) and (_varies(item.start) or _varies(item.stop)) for item in items):
            return original(self, index)
        items, tensor, dim = list(items), self, 0
        known = sum(1 for item in items if item is not None and item is not Ellipsis)
        for i, item in enumerate(items):
            if isinstance(item, slice) and (_varies(item.start) or _varies(item.stop)):
                size = _sizeOf(tensor, item)
                tensor = core().sliceAt(tensor, dim, item.start, size, 1 if item.step is None else item.step)
                items[i] = slice(None)
            dim += self.dim() - known if item is Ellipsis else 0 if item is None else 1
        return original(tensor, tuple(items))

    with itemAccess(getItem):
        torch.Tensor.__setitem__ = setItem
        try:
            yield
        finally:
            if "__setitem__" in vars(torch.Tensor):
                del torch.Tensor.__setitem__
