"""Losses: how a training model says what to minimise.

Source: spec annotations.md, section 3.
"""

import torch
import torch.nn.functional as F

from ._errors import refused
from ._native import core, isCapturing

_REDUCE = {"sum": torch.sum, "mean": torch.mean, "none": torch.clone}


def identity_loss(x: torch.Tensor, reduction: str | int) -> torch.Tensor:
    """Marks a value as the loss.

    Args:
        x: what to minimise.
        reduction: "sum", "mean" or "none" (each element is a loss).
    Returns: the reduced value. Outside a capture that is all it does.
    """
    if not isinstance(reduction, str) or reduction not in _REDUCE:
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
)


def _marking(original):
    def loss(*args, **kwargs):
        result = original(*args, **kwargs)
        core().markLoss(result)
        return result

    return loss


def add_losses(rules):
    """Rules for forward: the result of each loss is marked. Losses that torch computes inside a loss do not count."""
    for function in _LOSSES:
        rules.add(function, _marking)
