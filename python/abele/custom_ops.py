"""Operators that shared libraries register.

Source: spec annotations.md, section 9. Writing one: include/abele/custom_op.h.
"""

from collections.abc import Sequence
from typing import Any

import torch

from . import _onnx_operators
from ._errors import refused, require_type, user_error, wrong_type
from ._native import core, isCapturing

_FLOAT32_MAX = 3.4028234663852886e38
_INT64 = range(-(2**63), 2**63)


def _kind_of(value):
    for kind in (bool, float, int, str):
        if isinstance(value, kind):
            return kind
    return type(value)


def _checked(value, kind):
    if kind is str and not value.isascii():
        raise refused(ValueError, f"attributes are ASCII text, got {value!r}")
    if kind is float and abs(value) > _FLOAT32_MAX and abs(value) != float("inf"):
        raise user_error("E0708", f"attribute value {value} is out of the range of float32")
    if kind is int and value not in _INT64:
        raise user_error("E0708", f"attribute value {value} is out of the range of 64-bit integers")
    return value


def _native(attributes):
    native = core().CustomAttributes()
    setters = {int: ("setInt", "setInts"), float: ("setFloat", "setFloats"), str: ("setString", "setStrings")}
    for key, value in (attributes or {}).items():
        if not isinstance(key, str) or not key.isascii():
            raise refused(ValueError, f"names of attributes are ASCII text, got {key!r}")
        is_list = isinstance(value, (list, tuple))
        kinds = {_kind_of(item) for item in (value if is_list else [value])}
        if len(kinds) != 1 or not kinds <= setters.keys():
            raise refused(
                ValueError, f"attribute {key} is {value!r}: expected a float, an int, a str, or a list of one of these"
            )
        kind = kinds.pop()
        one, many = setters[kind]
        if is_list:
            getattr(native, many)(key, [_checked(item, kind) for item in value])
        else:
            getattr(native, one)(key, _checked(value, kind))
    return native


def _require_tensors(argument, values):
    expected = "a list or tuple of tensors"
    if isinstance(values, torch.Tensor) or not isinstance(values, Sequence):
        raise wrong_type("custom_op", argument, values, expected)
    for index, value in enumerate(values):
        require_type("custom_op", f"{argument}[{index}]", value, torch.Tensor, expected)


def custom_op(
    inputs: Sequence[torch.Tensor],
    name: str,
    domain: str,
    domain_version: int,
    example_outputs: Sequence[torch.Tensor],
    attributes: dict[str, Any] | None = None,
) -> list[torch.Tensor]:
    """Runs an operator of a library that was loaded before (ctypes.cdll.LoadLibrary), or one of ONNX or PopART.

    Args:
        inputs: tensors.
        name, domain, domain_version: identify the operator.
        example_outputs: tensors with the number, shapes and types of the results.
        attributes: name -> float, int, str, or a list or tuple of one of these.
    Returns: list of tensors; on the host zeros.
    Raises:
        ValueError: attributes of other types, or text that is not ASCII.
    """
    _require_tensors("inputs", inputs)
    _require_tensors("example_outputs", example_outputs)
    require_type("custom_op", "name", name, str, "a str")
    require_type("custom_op", "domain", domain, str, "a str")
    require_type("custom_op", "domain_version", domain_version, int, "an int")
    require_type("custom_op", "attributes", attributes, (dict, type(None)), "a dict of names and values")
    native = _native(attributes)
    if not isCapturing():
        return [torch.zeros_like(example) for example in example_outputs]
    if domain in _onnx_operators.DOMAINS:
        return _onnx_operators.run(inputs, name, domain, domain_version, example_outputs, attributes)
    return core().customOp(list(inputs), domain, name, domain_version, list(example_outputs), native)
