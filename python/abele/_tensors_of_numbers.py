"""torch.tensor and torch.as_tensor of lists that hold results of the program: torch would read them, one by one."""

import functools

import torch

from ._native import core

_PLAIN = (bool, int, float, complex)


def _leaves_of(data):
    """The numbers and tensors of nested lists."""
    if isinstance(data, list | tuple):
        for part in data:
            yield from _leaves_of(part)
    else:
        yield data


def _type_of(leaf):
    """The element type that torch gives to a number."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    if isinstance(leaf, bool | int):
        return torch.bool if isinstance(leaf, bool) else torch.int64
    real = torch.get_default_dtype()
    return torch.promote_types(real, torch.complex32) if isinstance(leaf, complex) else real


def _converted(leaf, dtype, device):
    if not isinstance(leaf, torch.Tensor):
        return torch.scalar_tensor(leaf, dtype=dtype, device=device)
    leaf = leaf.detach()
    if dtype.is_floating_point and not leaf.is_floating_point():
        leaf = leaf.double()  # on which way torch writes integers into floating point
    return leaf.to(dtype)


def _stacked(data, dtype, device):
    if isinstance(data, list | tuple):
        return torch.stack([_stacked(part, dtype, device) for part in data])
    return _converted(data, dtype, device)


def _first_varying(leaves):
    """The first result of the program among them; None also if the lists hold other objects than numbers and
    tensors."""
    if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in leaves):
        return None
    return next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and core().mayVary(leaf)), None)


def _stacking(original):
    def tensor(data, *, dtype=None, device=None, **settings):
        leaves = list(_leaves_of(data)) if isinstance(data, list | tuple) else []
        varying = _first_varying(leaves)
        if varying is None:
            return original(data, dtype=dtype, device=device, **settings)
        natural = functools.reduce(torch.promote_types, map(_type_of, leaves))
        wanted = natural if dtype is None else dtype
        if torch.promote_types(natural, wanted) != wanted and not wanted.is_floating_point:
            return original(data, dtype=dtype, device=device, **settings)  # it refuses some numbers by their values
        made = _stacked(data, wanted, varying.device)
        return (made if device is None else made.to(device)).requires_grad_(settings.get("requires_grad", False))

    return tensor


def add_tensors_of_numbers(rules):
    """Rules for forward."""
    for function in (torch.tensor, torch.as_tensor):
        rules.add(function, _stacking)
