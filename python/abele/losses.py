"""Losses: how a training model says what to minimise.

Source: spec annotations.md, section 3.
"""

from __future__ import annotations

import functools
import inspect
import sys

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from ._errors import notAvailable, refused
from ._item_access import exchanged
from ._native import core, isCapturing

_REDUCE = {"sum": torch.sum, "mean": torch.mean, "none": torch.clone}


def identity_loss(x: torch.Tensor, reduction: str | int) -> torch.Tensor:
    """Marks a value as the loss.

    Args:
        x: what to minimise.
        reduction: "sum", "mean" or "none" (each element is a loss).
    Returns: the reduced value. Outside a capture that is all it does.
    """
    if reduction not in _REDUCE:
        raise refused(AssertionError, f'reduction must be "sum", "mean" or "none", got {reduction!r}')
    result = _REDUCE[reduction](x)
    if isCapturing():
        core().markLoss(result)
    return result


# Losses of torch. Several are composed of other operations, some of them losses too, so only the public function knows
# which value is the result.
_LOSSES = frozenset(
    getattr(F, name)
    for name in (
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cosine_embedding_loss",
        "cross_entropy",
        "ctc_loss",
        "gaussian_nll_loss",
        "hinge_embedding_loss",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "margin_ranking_loss",
        "mse_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "multilabel_soft_margin_loss",
        "nll_loss",
        "poisson_nll_loss",
        "smooth_l1_loss",
        "soft_margin_loss",
        "triplet_margin_loss",
        "triplet_margin_with_distance_loss",
    )
    if hasattr(F, name)
)


def _given(func, args, kwargs, name):
    """The argument `name` of a call of a torch loss; None when it is not given."""
    if name in kwargs:
        return kwargs[name]
    place = list(inspect.signature(func).parameters).index(name)
    return args[place] if place < len(args) else None


def _requireNoWeights(func, args, kwargs):
    if _given(func, args, kwargs, "weight") is not None:
        raise notAvailable(f"{func.__name__} with weights of classes")


def _requirePaddedTargets(func, args, kwargs):
    if _given(func, args, kwargs, "reduction") == "none":
        raise notAvailable(f'{func.__name__} with reduction="none"', remedy='use reduction="mean" or "sum"')
    targets = _given(func, args, kwargs, "targets")
    if isinstance(targets, torch.Tensor) and targets.dim() != 2:
        raise notAvailable(
            f"{func.__name__} with targets of shape {tuple(targets.shape)}",
            remedy="pass targets of shape [batch, longest target], padded",
        )


# Forms of torch's losses that PopTorch's device does not have.
_REQUIREMENTS = {
    F.cross_entropy: _requireNoWeights,
    F.nll_loss: _requireNoWeights,
    F.ctc_loss: _requirePaddedTargets,
}


class LossMarking(TorchFunctionMode):
    """While active, every result of a torch loss is marked; losses computed inside a loss are not."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if getattr(func, "__wrapped__", func) in _LOSSES:  # refusedLosses() wraps some
            core().markLoss(result)
        return result


def refusedLosses():
    """While active, forms of torch's losses that PopTorch's device does not have are refused."""

    def checked(require, func):
        @functools.wraps(func)
        def call(*args, **kwargs):
            # Not where torch computes another loss by this one.
            if sys._getframe(1).f_globals is not vars(F) and isCapturing():
                require(func, args, kwargs)
            return func(*args, **kwargs)

        return call

    # Not by a mode like the one above: torch leaves its faster ways where one is active, also in inference.
    return exchanged(
        *((F, func.__name__, functools.partial(checked, require)) for func, require in _REQUIREMENTS.items())
    )
