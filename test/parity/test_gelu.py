"""GELU has eager's bits, of both formulas and in every shape, with oneDNN and without."""

import copy

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn


class Scaled(nn.Module):
    def __init__(self, shape, formula, is_turned):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(-3, 3, max(1, torch.Size(shape).numel())).view(shape))
        self.formula, self.is_turned = formula, is_turned

    def forward(self, x):
        y = x * self.scale
        if self.is_turned:
            y = y.transpose(-1, -2)
        y = F.gelu(y, approximate=self.formula)
        return y, poptorch.identity_loss(y.square().sum(), reduction="none")


def train_equally(shape, formula, is_turned=False):
    torch.manual_seed(2)
    model = Scaled(shape, formula, is_turned)
    reference = copy.deepcopy(model)
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(2)
    executor = abele.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.01))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.01)
    for _ in range(2):
        x = torch.randn(4, *shape)
        output, loss = executor(x)
        optimizer.zero_grad()
        expected = [reference(part) for part in x.chunk(2)]
        for _, part in expected:
            (part / 2).backward()
        optimizer.step()
        assert torch.equal(output, torch.cat([part for part, _ in expected]))
        assert torch.equal(loss.flatten(), torch.stack([part for _, part in expected]))
        assert torch.equal(executor.state_dict()["scale"], reference.scale)


@pytest.mark.parametrize("formula", ["none", "tanh"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (16,), (3, 17), (5, 1, 33)])
def test_training_has_eagers_bits(shape, formula):
    train_equally(shape, formula)


def test_a_turned_operand_has_eagers_bits():
    train_equally((6, 11), "none", is_turned=True)


def test_the_library_may_be_disabled():
    with torch.backends.mkldnn.flags(enabled=False):
        train_equally((8, 32), "none")
