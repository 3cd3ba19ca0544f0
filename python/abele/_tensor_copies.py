"""Python's copies of tensors while forward is captured."""

import torch

from ._native import core


def _copying(original):
    def deepcopy(tensor, memo):
        if id(tensor) in memo or not tensor.is_leaf or not core().isCaptured(tensor):
            return original(tensor, memo)
        memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return memo[id(tensor)]

    return deepcopy


def add_copies(rules):
    """copy.deepcopy of a tensor of the program: torch makes it of its storage, past all operators."""
    rules.add(torch.Tensor.__deepcopy__, _copying)
