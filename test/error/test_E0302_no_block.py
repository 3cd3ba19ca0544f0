"""E0302: an operation after the last Block was closed."""

import poptorch
import pytest
import torch


class Leaves(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block(ipu_id=0):
            x = x * 2
        return x + 1


def test_error():
    with pytest.raises(poptorch.Error, match="E0302 no-block"):
        poptorch.inferenceModel(Leaves())(torch.ones(2))
