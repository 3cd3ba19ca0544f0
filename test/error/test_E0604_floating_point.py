"""E0604: a step with floating-point exceptions whose weights overflow."""

import poptorch
import pytest
import torch


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x):
        with poptorch.Block(ipu_id=0):
            y = x * self.weight
        with poptorch.Block(ipu_id=1):
            return poptorch.identity_loss(y * 2.0, reduction="mean")


def test_error():
    model = Scaled()
    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(True)
    options.Training.gradientAccumulation(3)
    executor = poptorch.trainingModel(model, options)
    executor(torch.ones(3, 3))
    weights = model.weight.detach().clone()
    with pytest.raises(poptorch.Error, match="E0604 floating-point") as raised:
        executor(torch.full((3, 3), 3e38))
    text = str(raised.value)
    assert "an overflow" in text and "aten::mul" in text and "stage 1" in text and "test_E0604" in text
    assert torch.equal(model.weight, weights)
    assert executor(torch.ones(3, 3)).isfinite()
