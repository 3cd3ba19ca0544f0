"""E0406: an AutoSplit for more devices than the program has operators."""

import poptorch
import pytest
import torch


class Small(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x.view(-1, 4)).exp()


def split(devices):
    strategy = poptorch.PipelinedExecution(poptorch.AutoStage.AutoSplit).devices(devices)
    opts = poptorch.Options().deviceIterations(devices).setExecutionStrategy(strategy)
    return poptorch.inferenceModel(Small(), opts)(torch.zeros(devices, 4))


def test_error():
    with pytest.raises(poptorch.Error, match="E0406 too-few-pieces: the program cannot be cut into 4 stages") as raised:
        split(4)
    assert "2 pieces" in str(raised.value) and "use at most 2 devices" in str(raised.value)
    assert torch.equal(split(2), torch.ones(2, 4))
