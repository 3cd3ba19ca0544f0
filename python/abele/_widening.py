"""Functions of torch that refuse, before any operator is called, operands of several floating types, narrow ones, or
32-bit indices.

Layers compute in the type of their activation; other operators widen such operands while forward is captured
(src/capture: mixed_operands.def, float32_only.def, long_indices.def).
Source: spec environment.md, section 11.
"""

import functools

import torch
from torch.utils._pytree import tree_map_only

from ._function_rules import getter_of

# Layers, and the names of their activations, which come first. Every other operand is cast to the activations' type.
_LAYERS = {
    **dict.fromkeys(
        ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), ("input",)
    ),
    "bilinear": ("input1", "input2"),
    **dict.fromkeys(("rnn_tanh", "rnn_relu", "lstm", "gru"), ("input",)),
    **dict.fromkeys(("rnn_tanh_cell", "rnn_relu_cell", "lstm_cell", "gru_cell"), ("input",)),
    "_transformer_encoder_layer_fwd": ("src",),
    "_native_multi_head_attention": ("query",),
    "multi_head_attention_forward": ("query", "key", "value"),
}
# Functions, and the names of the operands that are cast to the widest type among them; none: all.
_FUNCTIONS = {
    "scaled_dot_product_attention": ("query", "key", "value"),
    "prelu": ("input", "weight"),
    "multi_dot": ("tensors",),
    "chain_matmul": (),
}
# Functions that torch's CPU does not have for float16 and bfloat16, members of torch.linalg and of torch (and of
# tensors). They compute in float32, and their results get the type of the first operand.
_LINALG = (
    "cholesky", "cholesky_ex", "cond", "det", "eigh", "eigvalsh", "householder_product", "inv", "inv_ex", "ldl_factor",
    "ldl_factor_ex", "ldl_solve", "lstsq", "lu", "lu_factor", "lu_factor_ex", "lu_solve", "matrix_rank",
    "pinv", "qr", "slogdet", "solve", "solve_ex", "solve_triangular", "svd", "svdvals", "tensorinv", "tensorsolve",
)  # fmt: skip
_NARROW = (
    "cholesky", "cholesky_inverse", "cholesky_solve", "det", "geqrf", "inverse", "logdet", "lu", "lu_solve",
    "nanquantile", "orgqr", "ormqr", "pinverse", "qr", "quantile", "slogdet", "svd",
)  # fmt: skip


_dtype_of = getter_of("dtype")  # without the code around attributes of wrapped weights


def _is_floating(value):
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _is_narrow(value):
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _each(value, change):
    """The value with change(tensor) in the place of each tensor in it."""
    return tree_map_only(torch.Tensor, change, value)


def _tensors(*values):
    """The tensors in nested lists, tuples and dictionaries."""
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += _tensors(*value)
        elif isinstance(value, dict):
            found += _tensors(*value.values())
    return found


def _floating_types(values):
    return {dtype for dtype in map(_dtype_of, values) if dtype.is_floating_point}


def _with_operands(original, change, args, kwargs):
    args, kwargs = _each((args, kwargs), change)
    return original(*args, **kwargs)


def _cast_to_activation(activations, original):
    @functools.wraps(original)
    def layer(*args, **kwargs):
        types = _floating_types(_tensors(args, kwargs))
        if len(types) < 2 or torch.is_autocast_enabled("cpu"):
            return original(*args, **kwargs)
        given = [*args[: len(activations)], *(kwargs.get(name) for name in activations)]
        types = _floating_types([value for value in given if isinstance(value, torch.Tensor)])
        if not types:
            return original(*args, **kwargs)
        dtype = functools.reduce(torch.promote_types, types)
        return _with_operands(original, lambda each: each.to(dtype) if _is_floating(each) else each, args, kwargs)

    return layer


def _widened(names, original):
    @functools.wraps(original)
    def function(*args, **kwargs):
        operands = _tensors(*args[: len(names) or None], *(kwargs.get(name) for name in names))
        types = _floating_types(operands)
        if len(types) < 2:
            return original(*args, **kwargs)
        widest = functools.reduce(torch.promote_types, types)

        def widen(value):
            return _each(value, lambda each: each.to(widest) if _is_floating(each) else each)

        wide = [widen(value) if i < len(names) or not names else value for i, value in enumerate(args)]
        return original(*wide, **{key: widen(value) if key in names else value for key, value in kwargs.items()})

    return function


def _in_float32(original):
    @functools.wraps(original)
    def function(*args, **kwargs):
        operands = [each for each in _tensors(args, list(kwargs.values())) if _is_floating(each)]
        if not any(map(_is_narrow, operands)) or kwargs.get("out") is not None:
            return original(*args, **kwargs)
        result = _with_operands(original, lambda each: each.float() if _is_narrow(each) else each, args, kwargs)
        dtype = operands[0].dtype
        return _each(result, lambda each: each.to(dtype) if each.dtype == torch.float32 else each)

    return function


def _type_of_weights(rules, original):
    """Tensor.dtype: recurrent modules refuse an input whose type differs from the type of their weights."""

    def dtype(tensor):
        frame = rules.caller()
        if frame.f_code is torch.nn.RNNBase.check_input.__code__ and _is_floating(frame.f_locals.get("input")):
            return original(frame.f_locals["self"]._flat_weights[0])
        return original(tensor)

    return dtype


# Function, its homes, and where its indices are: position and name.
_INDEXED = (
    ("one_hot", (torch.nn.functional,), 0, "tensor"),
    ("take_along_dim", (torch, torch.Tensor), 1, "indices"),
)


def _long_indices(position, name, original):
    @functools.wraps(original)
    def function(*args, **kwargs):
        def widen(value, is_index):
            is_narrow = is_index and isinstance(value, torch.Tensor) and value.dtype == torch.int32
            return value.long() if is_narrow else value

        wide = [widen(value, i == position) for i, value in enumerate(args)]
        return original(*wide, **{key: widen(value, key == name) for key, value in kwargs.items()})

    return function


def _homes_of(name, homes):
    return {getattr(home, name) for home in homes if hasattr(home, name)}


def add_widening(rules):
    """Rules for forward: layers compute mixed operands in the activation's type, other functions in the widest."""
    homes = (torch, torch.nn.functional, torch._VF, torch.Tensor)
    makes = {name: functools.partial(_cast_to_activation, activations) for name, activations in _LAYERS.items()}
    makes.update((name, functools.partial(_widened, names)) for name, names in _FUNCTIONS.items())
    for name, make in makes.items():
        for function in _homes_of(name, (*homes, torch.linalg)):
            rules.add(function, make)
    narrow = set().union(*(_homes_of(name, (torch.linalg,)) for name in _LINALG))
    for function in narrow.union(*(_homes_of(name, homes) for name in _NARROW)):
        rules.add(function, _in_float32)
    rules.add(getter_of("dtype"), functools.partial(_type_of_weights, rules))
    for name, homes, position, argument in _INDEXED:
        for function in _homes_of(name, homes):
            rules.add(function, functools.partial(_long_indices, position, argument))
