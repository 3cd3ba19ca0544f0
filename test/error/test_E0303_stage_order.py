"""E0303: stages that fall along the data flow."""

import poptorch
import pytest
import torch


class Returns(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block(ipu_id=1):
            x = x * 2
        with poptorch.Block(ipu_id=0):
            return x + 1


def test_error():
    with pytest.raises(poptorch.Error, match="E0303 stage-order"):
        poptorch.inferenceModel(Returns(), poptorch.Options().deviceIterations(3))(torch.ones(3))
    opts = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    assert torch.equal(poptorch.inferenceModel(Returns(), opts)(torch.ones(3)), torch.full((3,), 3.0))
