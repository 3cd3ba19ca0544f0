"""Functions of torch that refuse, before any operator is called, operands of several floating types or 32-bit indices.

The operators themselves widen such operands while forward is captured (src/capture: mixed_operands.def,
long_indices.def).
Source: spec environment.md, section 11.
"""

import contextlib
import functools

import torch

# Function and how many of its arguments are operands.
_FUNCTIONS = {"conv1d": 3, "conv2d": 3, "conv3d": 3, "scaled_dot_product_attention": 3}
_NAMES = ("input", "weight", "bias", "query", "key", "value")


def _isFloating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _widened(original, num_operands):
    @functools.wraps(original)
    def function(*args, **kwargs):
        operands = [*args[:num_operands], *(kwargs.get(name) for name in _NAMES)]
        types = {value.dtype for value in operands if _isFloating(value)}
        if len(types) < 2:
            return original(*args, **kwargs)
        widest = functools.reduce(torch.promote_types, types)

        def widen(value):
            return value.to(widest) if _isFloating(value) else value

        wide = [widen(value) if i < num_operands else value for i, value in enumerate(args)]
        return original(*wide, **{key: widen(value) if key in _NAMES else value for key, value in kwargs.items()})

    return function


def _longIndices(original):
    @functools.wraps(original)
    def function(*args, **kwargs):
        def widen(value):
            return value.long() if isinstance(value, torch.Tensor) and value.dtype == torch.int32 else value

        return original(*(widen(value) for value in args), **{key: widen(value) for key, value in kwargs.items()})

    return function


@contextlib.contextmanager
def widenedOperands():
    """Around forward: these functions compute mixed operands in the type that holds the values of all."""
    homes = [(home, name) for name in _FUNCTIONS for home in (torch, torch.nn.functional) if hasattr(home, name)]
    homes.append((torch.nn.functional, "one_hot"))
    originals = [getattr(home, name) for home, name in homes]
    for (home, name), original in zip(homes, originals, strict=True):
        count = _FUNCTIONS.get(name)
        setattr(home, name, _widened(original, count) if count else _longIndices(original))
    try:
        yield
    finally:
        for (home, name), original in zip(homes, originals, strict=True):
            setattr(home, name, original)
