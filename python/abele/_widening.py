"""Functions of torch that refuse, before any operator is called, operands of several floating types or 32-bit indices.

Layers compute in the type of their activation; other operators widen such operands while forward is captured
(src/capture: mixed_operands.def, long_indices.def).
Source: spec environment.md, section 11.
"""

import functools

import torch

from ._item_access import exchanged

# Layers: activation, weight and bias come first, under these names.
_LAYERS = ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_LAYER_NAMES = ("input", "weight", "bias")
# Function and how many of its arguments are operands.
_FUNCTIONS = {"scaled_dot_product_attention": 3}
_NAMES = ("query", "key", "value")


def _isFloating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _castToActivation(original):
    @functools.wraps(original)
    def layer(*args, **kwargs):
        activation = args[0] if args else kwargs.get("input")
        if not _isFloating(activation) or torch.is_autocast_enabled("cpu"):
            return original(*args, **kwargs)

        def cast(value):
            return value.to(activation.dtype) if _isFloating(value) else value

        operands = [cast(value) if i < len(_LAYER_NAMES) else value for i, value in enumerate(args)]
        named = {key: cast(value) if key in _LAYER_NAMES else value for key, value in kwargs.items()}
        return original(*operands, **named)

    return layer


def _widened(num_operands, original):
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


# Function, its homes, and where its indices are: position and name.
_INDEXED = (
    ("one_hot", (torch.nn.functional,), 0, "tensor"),
    ("take_along_dim", (torch, torch.Tensor), 1, "indices"),
)


def _longIndices(position, name, original):
    @functools.wraps(original)
    def function(*args, **kwargs):
        def widen(value, is_index):
            is_narrow = is_index and isinstance(value, torch.Tensor) and value.dtype == torch.int32
            return value.long() if is_narrow else value

        wide = [widen(value, i == position) for i, value in enumerate(args)]
        return original(*wide, **{key: widen(value, key == name) for key, value in kwargs.items()})

    return function


def widenedOperands():
    """Around forward: layers compute mixed operands in the activation's type, other functions in the widest."""
    makes = dict.fromkeys(_LAYERS, _castToActivation)
    makes.update((name, functools.partial(_widened, count)) for name, count in _FUNCTIONS.items())
    homes = (torch, torch.nn.functional)
    places = [(home, name, make) for name, make in makes.items() for home in homes if hasattr(home, name)]
    for name, homes, position, argument in _INDEXED:
        places += [(home, name, functools.partial(_longIndices, position, argument)) for home in homes]
    return exchanged(*places)
