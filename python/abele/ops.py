"""Operators for use inside a model. On the host they work the same, except where they say otherwise.

Source: spec annotations.md, sections 4 to 9.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import torch

from ._errors import refused, require_type, typed_arguments, user_error
from ._native import core, isCapturing
from ._overlap import set_overlap_for_input, set_overlap_for_output
from .annotations import (  # noqa: F401  (poptorch.ops holds all that a forward uses)
    ATTR_PREFIX,
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    NameScope,
    accessAttributes,
    attributes_lists,
    removeBlocks,
)
from .control_flow import CPU, cond, for_loop
from .custom_ops import custom_op
from .enums import MatMulSerializationMode
from .losses import identity_loss  # noqa: F401
from .multi_conv import MultiConv
from .structures import flattenTensorStructure, reconstructTensorStructure  # noqa: F401

__all__ = [
    "CPU",
    "MultiConv",
    "cond",
    "ctc_beam_search_decoder",
    "custom_op",
    "dynamic_slice",
    "dynamic_update",
    "for_loop",
    "fps",
    "ipu_print_tensor",
    "isRunningOnIpu",
    "nearest",
    "nop",
    "recomputationCheckpoint",
    "serializedMatMul",
    "set_available_memory",
    "set_overlap_for_input",
    "set_overlap_for_output",
]


def _refuse(what, found="", expected=""):
    return user_error("E0708", what, found=found, expected=expected)


def _require_tensor(function, tensor, argument="the argument"):
    if not isinstance(tensor, torch.Tensor):
        raise _refuse(f"{function}: {argument} is a {type(tensor).__name__}", expected="a tensor")


def _require_int(function, value, argument):
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refuse(f"{function}: {argument} is a {type(value).__name__}", expected="an int")


def isRunningOnIpu() -> bool:
    """True while a model's forward is captured for a device, otherwise False."""
    return isCapturing()


def nop(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor."""
    _require_tensor("nop", tensor)
    return tensor.clone()


@typed_arguments
def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """A copy of the tensor. Prints it on stderr each time it is computed: once per micro-batch.

    Args:
        tensor: the tensor to print.
        title: text before the values; empty: the tensor's name.
        print_gradient: also print its gradient, under "<title>_gradient".
        summarise_threshold: tensors with more elements print only `edge_items` at both ends; 0: never.
        edge_items: number of elements at each end.
        max_line_width: longer lines are broken; 0: never.
        digits: significant digits; 0: no alignment.
        float_format: "auto", "fixed", "scientific" or "none".
        separator: text between elements.
        open_bracket: text before each dimension.
        close_bracket: text after each dimension.
    Raises:
        KeyError: another float_format.
    """
    _require_tensor("ipu_print_tensor", tensor)
    if float_format not in ("auto", "fixed", "scientific", "none"):
        raise KeyError(float_format)
    return core().printTensor(
        tensor,
        title,
        print_gradient,
        summarise_threshold,
        edge_items,
        max_line_width,
        digits,
        float_format,
        separator,
        open_bracket,
        close_bracket,
    )


def set_available_memory(tensor: torch.Tensor, available_memory_proportion: float) -> torch.Tensor:
    """Returns the tensor itself. The share (0..1) of memory for the operation that made it is a hint."""
    _require_tensor("set_available_memory", tensor)
    require_type(
        "set_available_memory",
        "available_memory_proportion",
        available_memory_proportion,
        numbers.Real,
        "a number in 0..1",
    )
    if not 0 <= available_memory_proportion <= 1:
        raise user_error(
            "E0702", f"available memory proportion is {available_memory_proportion}", expected="a number in 0..1"
        )
    return tensor


def recomputationCheckpoint(*tensors: torch.Tensor) -> Any:
    """Returns the tensors: one for one, a tuple for several, the same container for a list or tuple.

    Keeps their values for the backward pass instead of computing them again.
    """
    values = tensors[0] if len(tensors) == 1 else tensors
    each = values if isinstance(values, (list, tuple)) else [values]
    for value in each:
        if not isinstance(value, torch.Tensor):
            raise refused(ValueError, f"recomputationCheckpoint of a {type(value).__name__}: expected tensors")
    if isCapturing():
        for value in each:
            core().keepValue(value)
    return values


_SERIALIZATION = list(MatMulSerializationMode)


@typed_arguments
def serializedMatMul(
    lhs: torch.Tensor, rhs: torch.Tensor, mode: MatMulSerializationMode, factor: int = 0, keep_precision: bool = False
) -> torch.Tensor:
    """torch.matmul in `factor` pieces along the rows of lhs, the shared dimension, or the columns of rhs.

    Args:
        lhs, rhs: matrices, or batches of them.
        mode: a MatMulSerializationMode.
        factor: number of pieces; divides the dimension. Mode Disabled ignores it.
        keep_precision: add float16 sums over the shared dimension in float32.
    """
    if not isinstance(mode, MatMulSerializationMode):
        raise refused(AssertionError, "mode is not a MatMulSerializationMode")
    if not isinstance(factor, int):
        raise refused(AssertionError, "factor is not an int")
    if not isinstance(keep_precision, bool):
        raise refused(AssertionError, "keep_precision is not a bool")
    return core().serializedMatMul(lhs, rhs, _SERIALIZATION.index(mode), factor, keep_precision)


def dynamic_slice(tensor: torch.Tensor, dim: int, start: torch.Tensor, size: int, step: int) -> torch.Tensor:
    """Elements start, start + step, ... < start + size along `dim`.

    On a device a window that runs past the end wraps around; on the host it ends there.

    Args:
        tensor: the tensor to slice.
        dim: the dimension.
        start: integer tensor of one element, whose value may change between runs.
        size: length of the window; on a device a divisor of the dimension's length.
        step: distance between the elements.
    """
    _require_tensor("dynamic_slice", tensor, "tensor")
    _require_tensor("dynamic_slice", start, "start")
    for value, argument in ((dim, "dim"), (size, "size"), (step, "step")):
        _require_int("dynamic_slice", value, argument)
    return core().dynamicSlice(tensor, dim, start, size, step)


def dynamic_update(input: torch.Tensor, src: torch.Tensor, dim: int, start: torch.Tensor, size: int) -> torch.Tensor:
    """A copy of `input` with `src` written at `start` along `dim`.

    Args:
        input: the tensor to copy.
        src: the values to write, of the same rank and type.
        dim: the dimension.
        start: integer tensor of one element.
        size: length of the values along dim.
    """
    _require_tensor("dynamic_update", input, "input")
    _require_tensor("dynamic_update", src, "src")
    _require_tensor("dynamic_update", start, "start")
    _require_int("dynamic_update", dim, "dim")
    _require_int("dynamic_update", size, "size")
    return core().dynamicUpdate(input, src, dim, start, size)


def ctc_beam_search_decoder(
    probs: torch.Tensor, lengths: torch.Tensor, blank: int = 0, beam_width: int = 100, top_paths: int = 1
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The most probable label sequences of log-probabilities [T, N, C].

    Returns: log-probabilities [N, top_paths], lengths [N, top_paths], classes [N, top_paths, T]; the last two are
    int32.
    """
    _require_tensor("ctc_beam_search_decoder", probs, "probs")
    _require_tensor("ctc_beam_search_decoder", lengths, "lengths")
    for value, argument in ((blank, "blank"), (beam_width, "beam_width"), (top_paths, "top_paths")):
        _require_int("ctc_beam_search_decoder", value, argument)
    return core().ctcBeamSearchDecoder(probs, lengths, blank, beam_width, top_paths)


@typed_arguments
def fps(src: torch.Tensor, ptr: Sequence[int], ratio: float = 0.5, random_start: bool = False) -> torch.Tensor:
    """Farthest point sampling of each batch. Returns int32 indices of rows of `src`, in the order of selection.

    Args:
        src: points [P, F].
        ptr: boundaries of the batches, a list of two ints or more.
        ratio: share of the points to pick.
        random_start: begin at a random point of each batch instead of its first one.
    """
    _require_tensor("fps", src, "src")
    if not isinstance(ptr, list) or len(ptr) < 2:
        raise _refuse("fps: ptr is no list of two boundaries or more", found=repr(ptr))
    if not isinstance(ratio, float):
        raise _refuse(f"fps: ratio is a {type(ratio).__name__}", expected="a float")
    if not isinstance(random_start, bool):
        raise _refuse(f"fps: random_start is a {type(random_start).__name__}", expected="a bool")
    return core().fps(src, ptr, ratio, random_start)


def _batch(batch, argument):
    if isinstance(batch, torch.Tensor):
        return batch
    if not isinstance(batch, list):
        raise _refuse(f"nearest: {argument} is a {type(batch).__name__}", expected="a list or a tensor")
    if batch != sorted(batch):
        raise _refuse(f"nearest: {argument} is not sorted", found=repr(batch))
    return torch.tensor(batch, dtype=torch.int64)


@typed_arguments
def nearest(
    x: torch.Tensor,
    y: torch.Tensor,
    batch_x: torch.Tensor | Sequence[int] | None = None,
    batch_y: torch.Tensor | Sequence[int] | None = None,
) -> torch.Tensor:
    """For each row of `x` the index (int32) of the nearest row of `y` in the same batch.

    Args:
        x, y: points [n, F], or [n] for one feature.
        batch_x, batch_y: sorted ids, one per row. If only one is given, the other is all zeros.
    """
    _require_tensor("nearest", x, "x")
    _require_tensor("nearest", y, "y")
    if isinstance(batch_x, list) and isinstance(batch_y, list) and set(batch_x) != set(batch_y):
        raise _refuse("nearest: batch_x and batch_y hold different ids", found=f"{batch_x}, {batch_y}")
    return core().nearest(
        x,
        y,
        None if batch_x is None else _batch(batch_x, "batch_x"),
        None if batch_y is None else _batch(batch_y, "batch_y"),
    )
