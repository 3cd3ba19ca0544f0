"""E0711: an option that the devices do not honour."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    opts.Precision.enableStochasticRounding(True)
    model = torch.nn.Linear(2, 2)
    with pytest.raises(poptorch.Error, match="E0711 not-available: stochastic rounding"):
        poptorch.trainingModel(_WithLoss(model), opts)(torch.ones(1, 2))


class _WithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        y = self.model(x)
        return y, poptorch.identity_loss(y, reduction="mean")
