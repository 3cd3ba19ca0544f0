"""Loops, branches and host functions in the middle of a device program.

Source: spec annotations.md, sections 5 and 8.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from typing import Any

import torch

from ._errors import refused, typed_arguments, user_error, wrong_type
from ._native import core
from ._random_states import allowed_draws
from ._tracing import CaptureMode


def _require_list(function, values, argument):
    if not isinstance(values, list) or not all(isinstance(value, torch.Tensor) for value in values):
        raise refused(ValueError, f"{function}: {argument} is not a list of tensors")


def _require_callable(function, argument, value):
    if not callable(value):
        raise wrong_type(function, argument, value, "something to call")


def _listing(function, body, argument="body"):
    """`body`, which returns a tensor, a list or a tuple, as a function that takes and returns a list."""
    _require_callable(function, argument, body)

    def listed(tensors):
        result = body(*tensors)
        results = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(results, (list, tuple)) or not all(isinstance(value, torch.Tensor) for value in results):
            raise user_error(
                "E0708",
                f"the body of {function} returns a {type(result).__name__}",
                expected="a tensor, or a list or tuple of tensors",
            )
        return list(results)

    return listed


@typed_arguments
def for_loop(count: int, body: Callable[..., Any], inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Carries tensors through `count` iterations of `body(*tensors)`. On a device: inference only.

    Args:
        count: number of iterations.
        body: traced once; returns the same number of tensors that it takes, with the same shapes and types.
        inputs: list of tensors; they are copied.
    Returns: list of tensors.
    Raises:
        ValueError: inputs is not a list of tensors.
    """
    _require_list("for_loop", inputs, "inputs")
    return core().forLoop(count, _listing("for_loop", body), inputs, CaptureMode())


@typed_arguments
def cond(
    condition: torch.Tensor,
    then_body: Callable[..., Any],
    then_inps: list[torch.Tensor],
    else_body: Callable[..., Any],
    else_inps: list[torch.Tensor],
) -> list[torch.Tensor]:
    """The results of one of two branches; `condition` chooses in each run. On a device: inference only.

    Args:
        condition: bool tensor of one element.
        then_body, else_body: both traced once; return the same number of tensors.
        then_inps, else_inps: lists of tensors; they are copied.
    Returns: list of tensors.
    Raises:
        ValueError: inputs that are not a list of tensors.
    """
    _require_list("cond", then_inps, "then_inps")
    _require_list("cond", else_inps, "else_inps")
    return core().cond(
        condition,
        _listing("cond", then_body, "then_body"),
        then_inps,
        _listing("cond", else_body, "else_body"),
        else_inps,
        CaptureMode(),
    )


def _line_of(function):
    """ "train.py:88", the place of the function in the source; "" if unknown."""
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, torch.nn.Module):
        function = function.forward
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


class CPU:
    """A function that runs on the host in the middle of a device program, once per micro-batch. Inference only.

    Args:
        layer_to_call: the function. For a module, its parameters no longer require gradients.
        ID: a different text for each object in a model.
    """

    def __init__(self, layer_to_call: Callable[..., Any], ID: str) -> None:
        _require_callable("CPU", "layer_to_call", layer_to_call)
        if isinstance(layer_to_call, torch.nn.Module):
            layer_to_call.requires_grad_(False)
        self._layer_to_call = layer_to_call
        self._ID = ID
        self._call = None

    def _run(self, tensors):
        with allowed_draws():
            result = self._layer_to_call(*tensors)
        results = [result] if isinstance(result, torch.Tensor) else result
        if not isinstance(results, (list, tuple)) or not all(isinstance(value, torch.Tensor) for value in results):
            holds = isinstance(results, (list, tuple))
            raise user_error(
                "E0708",
                f"host function {self._ID} returns something else than tensors",
                at=_line_of(self._layer_to_call),
                found=f"a {type(results).__name__} of other things" if holds else repr(result),
                expected="a tensor, or a list or tuple of tensors",
                remedy="return the tensors that the program goes on with",
            )
        return list(results)

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        others = [*kwargs, *(value for value in inputs if not isinstance(value, torch.Tensor))]
        if others:
            raise user_error(
                "E0708",
                f"host function {self._ID} is called with something else than tensors",
                found=", ".join(map(repr, others)),
                expected="tensors, by position",
                remedy="bind other arguments before: poptorch.CPU(functools.partial(function, name=value), ID)",
            )
        if self._call is None:
            self._call = core().HostCall(self._run, str(self._ID))
        results = self._call(list(inputs))
        return results[0] if len(results) == 1 else results
