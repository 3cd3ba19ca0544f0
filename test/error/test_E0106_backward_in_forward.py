"""E0106: forward calls backward(), and eager would add what that leaves to the gradients of the loss."""

import poptorch
import pytest
import torch


class Salient(torch.nn.Module):
    """Weighs its input by the slope of its result."""

    def __init__(self, asks):
        super().__init__()
        self.layer, self.asks = torch.nn.Linear(3, 1), asks

    def forward(self, x):
        with torch.enable_grad():
            copy = x.detach().requires_grad_()
            y = self.layer(copy).sum()
            if self.asks:
                (slope,) = torch.autograd.grad(y, copy)
            else:
                y.backward()
                slope = copy.grad
        return poptorch.identity_loss(self.layer(x * slope).square(), "mean")


def test_backward_in_forward():
    x = torch.randn(2, 3)
    model = Salient(asks=False)
    expected = model(x).detach()
    model.zero_grad()
    with pytest.raises(poptorch.Error, match="E0106 unsupported-op: forward calls backward") as raised:
        poptorch.trainingModel(model)(x)
    assert "layer.weight" in str(raised.value) and "torch.autograd.grad" in str(raised.value)
    assert model.layer.weight.grad is None
    assert torch.equal(poptorch.inferenceModel(model)(x), expected)  # nothing is trained
    assert model.layer.weight.grad is None
    model.destroy()
    model.asks = True  # the remedy
    assert torch.equal(poptorch.trainingModel(model)(x), expected)
