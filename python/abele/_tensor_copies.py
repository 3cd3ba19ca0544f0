"""Python's copies of tensors while forward is captured."""

import contextlib

import torch

from ._item_access import replaced
from ._native import core


@contextlib.contextmanager
def copiesOfTensors():
    """copy.copy and copy.deepcopy of a tensor of the program: torch makes them of its storage, past all operators."""
    deepcopy = torch.Tensor.__deepcopy__

    def copyOf(self):
        return self.detach().requires_grad_(self.requires_grad)

    def deepCopyOf(self, memo):
        if id(self) in memo or not self.is_leaf or not core().isCaptured(self):
            return deepcopy(self, memo)
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]

    with replaced("__copy__", copyOf), replaced("__deepcopy__", deepCopyOf):
        yield
