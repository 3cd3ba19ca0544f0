"""E0604: a step with floating-point exceptions whose weights overflow."""

import abele
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


def step(forward, x):
    """The error of a step with these inputs."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x):
            return poptorch.identity_loss(forward(x * self.weight), reduction="mean")

    options = abele.Options()
    options.Precision.enableFloatingPointExceptions(True)
    executor = abele.trainingModel(Net(), options)
    executor(torch.ones(3))
    with pytest.raises(abele.Error, match="E0604 floating-point") as raised:
        executor(x)
    return str(raised.value)


def test_backward_and_complex_numbers_name_what_made_the_value():
    text = step(torch.sqrt, torch.zeros(3))
    assert "backward of stage 0" in text and "aten::div" in text and "test_E0604" in text
    text = step(lambda x: (torch.complex(x, x) / x.detach().abs()).abs(), torch.zeros(3))
    assert "an invalid operation gave NaN" in text and "aten::div" in text and "test_E0604" in text
