"""t[a:b] and t[i] with integer tensors whose values may change between runs.

Source: spec annotations.md, section 6.
"""

import functools

import torch

from ._errors import user_error
from ._native import core


def _length_of(bounds):
    """The length of a slice between two tensors, if the program computes one bound from the other by adding a constant
    above 0; otherwise None."""
    start, stop = bounds.start, bounds.stop
    if not (isinstance(start, torch.Tensor) and isinstance(stop, torch.Tensor)):
        return None
    size = core().constantDifference(start, stop)
    return size if size is not None and size > 0 else None


def _read(item):
    """A slice by numbers."""
    if not isinstance(item, slice):
        return item
    return slice(
        *(int(bound) if isinstance(bound, torch.Tensor) else bound for bound in (item.start, item.stop, item.step))
    )


def _size_of(tensor, bounds):
    """Length of tensor[bounds] if a bound is a tensor."""
    size = _length_of(bounds)
    if size is None:
        raise user_error(
            "E0101",
            "a slice whose length is not a constant",
            found=f"t[start:stop] of a tensor of shape {tuple(tensor.shape)}",
            expected="tensor bounds with stop = start + a constant above 0",
            remedy="poptorch.dynamic_slice(tensor, dim, start, size, step)",
        )
    return size


def _varies(bound):
    return isinstance(bound, torch.Tensor) and core().mayVary(bound)


def _is_moving(item):
    """Whether the item is a slice whose position may change between runs."""
    return isinstance(item, slice) and (_varies(item.start) or _varies(item.stop))


def _is_position(item):
    """Whether the item is an integer tensor without dimensions, which torch would read as a number."""
    return (
        isinstance(item, torch.Tensor)
        and item.dim() == 0
        and item.dtype in (torch.int8, torch.int16, torch.int32, torch.int64)
        and _varies(item)
    )


def _is_basic(item):
    return item is None or item is Ellipsis or (isinstance(item, (int, slice)) and not isinstance(item, bool))


def _at_positions(tensor, items, get_item):
    """(a view of tensor, an index for aten::index), which together select what the items select; None for other
    items."""
    if not all(_is_basic(item) or _is_position(item) for item in items):
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


class _Written(torch.autograd.Function):
    """Returns `tensor` after a detached `value` was written through a mask, and computes the gradient of `value`."""

    @staticmethod
    def forward(ctx, tensor, value, mask, dim):
        ctx.mark_dirty(tensor)
        ctx.save_for_backward(mask)
        ctx.dim, ctx.sizes = dim, value.shape
        return tensor

    @staticmethod
    def backward(ctx, grad):
        (mask,) = ctx.saved_tensors
        return grad, torch.ops.abele_op.masked_gradient(grad, mask, ctx.dim, ctx.sizes), None, None


def _is_whole(item):
    return isinstance(item, slice) and item.start is None and item.stop is None and item.step is None


def _learned_mask(tensor, items, value):
    """(mask, its dimension) of tensor[mask] = value, tensor[:, mask] = value, if value needs a gradient and the mask's
    values may vary; otherwise None."""
    mask, dim = items[-1], len(items) - 1
    if not (isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()):
        return None
    if not (isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and all(map(_is_whole, items[:dim]))):
        return None
    return (mask, dim) if core().mayVary(mask) and value.dim() <= tensor.dim() - mask.dim() + 1 else None


def add_indexing(rules, reads):
    """Rules for forward.

    Args:
        reads: read the bounds of a slice whose length is not a constant, if forward may read them; otherwise refuse the
            slice, as spec annotations.md says.
    """
    original, original_set = torch.Tensor.__getitem__, torch.Tensor.__setitem__
    original_narrow = torch.Tensor.narrow

    @functools.wraps(original_narrow)
    def narrow(input, dim, start, length):
        if not _varies(start):
            return original_narrow(input, dim, start, length)
        original_narrow(input, dim, 0, length)  # refuses what it would refuse
        return core().sliceAt(input, dim % input.dim(), start, length, 1)

    def write_item(self, index, value):
        items = index if isinstance(index, tuple) else (index,)
        found = _at_positions(self, items, original) if any(map(_is_position, items)) else None
        masked = _learned_mask(self, items, value) if items else None
        if masked is not None:
            original_set(self, index, value.detach())
            _Written.apply(self, value, *masked)
            return
        if found is None:
            return original_set(self, index, value) if not any(map(_is_moving, items)) else put_at(self, index, value)
        view, positions = found
        value = value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value, dtype=self.dtype)
        torch.ops.aten.index_put_(view, positions, value.to(self.dtype))

    def put_at(self, index, value):
        """self[index] = value if the index has a moving slice: finds the numbers of the selected elements."""
        places = read_item(torch.arange(self.numel(), device=self.device).view(self.shape), index)
        value = value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value, dtype=self.dtype)
        while value.dim() > places.dim() and value.shape[0] == 1:
            value = value[0]
        self.put_(places, value.to(self.dtype).expand(places.shape))

    def read_item(self, index):
        items = index if isinstance(index, tuple) else (index,)
        found = _at_positions(self, items, original) if any(map(_is_position, items)) else None
        if found is not None:
            return torch.ops.aten.index(*found)
        if not any(map(_is_moving, items)):
            return original(self, index)
        if reads and any(_is_moving(item) and _length_of(item) is None for item in items):
            return original(self, tuple(map(_read, items)))
        items, tensor, dim = list(items), self, 0
        known = sum(1 for item in items if item is not None and item is not Ellipsis)
        for i, item in enumerate(items):
            if _is_moving(item):
                size = _size_of(tensor, item)
                tensor = core().sliceAt(tensor, dim, item.start, size, 1 if item.step is None else item.step)
                items[i] = slice(None)
            dim += self.dim() - known if item is Ellipsis else 0 if item is None else 1
        return original(tensor, tuple(items))

    rules.add(original, lambda _: read_item)
    rules.add(original_set, lambda _: write_item)
    for function in (original_narrow, torch.narrow):
        rules.add(function, lambda _: narrow)
