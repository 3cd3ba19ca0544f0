"""E0706: a constant of the optimizer that changes."""

import poptorch
import pytest
import torch


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return poptorch.identity_loss(self.w * x, "sum")


def test_error():
    model = Loss()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(2))
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(poptorch.Error, match="E0706 optimizer") as raised:
        executor.setOptimizer(optimizer)
    assert "markAsVariable" in str(raised.value)


def test_constants_of_optimizers_without_marks():
    model = Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(2))
    optimizer.param_groups[0]["betas"] = (0.5, 0.5)  # no scheduler said so
    with pytest.raises(poptorch.Error, match="E0706 optimizer") as raised:
        executor.setOptimizer(optimizer)
    assert "torch's own optimizers have no marks" in str(raised.value)
