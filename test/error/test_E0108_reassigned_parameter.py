"""E0108: forward replaces a buffer."""

import poptorch
import pytest
import torch


class Replaces(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count = self.count + 1
        return x * self.count


def test_error():
    with pytest.raises(poptorch.Error, match="E0108 reassigned-parameter: forward replaced count"):
        poptorch.inferenceModel(Replaces())(torch.ones(2))
