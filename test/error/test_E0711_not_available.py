"""E0711: an option that the devices do not honour."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options().replicationFactor(2)
    opts.Distributed.configureProcessId(0, 2)
    executor = poptorch.trainingModel(_Scaled(), opts)
    executor.scale.replicaGrouping(poptorch.CommGroupType.NoGrouping, 0, poptorch.VariableRetrievalMode.OnePerGroup)
    with pytest.raises(poptorch.Error, match="E0711 not-available: replicaGrouping"):
        executor(torch.ones(2, 3))


class _Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(2, 3))

    def forward(self, x):
        y = x * self.scale
        return y, poptorch.identity_loss(y, reduction="mean")
