"""Losses inside of torch.func's transforms: their values and gradients are eager's, and which of them trains."""

import copy

import poptorch
import pytest
import torch
from torch.nn.functional import mse_loss

pytestmark = pytest.mark.usefixtures("one_thread")


def identity(loss):
    return poptorch.identity_loss(loss, reduction="mean")


class Adapted(torch.nn.Module):
    """One inner step of gradient descent, whose result is the model."""

    def __init__(self, inner):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3)
        self.inner = inner

    def forward(self, x, y):
        weights = dict(self.layer.named_parameters())

        def loss_of(weights):
            return self.inner(torch.func.functional_call(self.layer, weights, (x,)), y)

        gradients = torch.func.grad(loss_of)(weights)
        adapted = {name: weight - 0.1 * gradients[name] for name, weight in weights.items()}
        return mse_loss(torch.func.functional_call(self.layer, adapted, (x,)), 2 * y)


class PerSample(torch.nn.Module):
    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 3)
        self.loss = loss

    def forward(self, x, y):
        losses = torch.vmap(lambda row, target: self.loss(self.layer(row), target))(x, y)
        return identity(losses)


def trained(model):
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    options = poptorch.Options()
    options.threadsPerDevice(1)
    step = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        optimizer.zero_grad()
        loss = eager(x, y)
        loss.backward()
        optimizer.step()
        assert torch.equal(step(x, y), loss.detach())
    for ours, theirs in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("inner", [mse_loss, lambda out, y: identity((out - y).square())], ids=["torch", "identity"])
def test_a_loss_that_is_differentiated_inside_does_not_train(inner):
    trained(Adapted(inner))


@pytest.mark.parametrize(
    "loss",
    [mse_loss, lambda out, y: poptorch.identity_loss((out - y).abs(), reduction="sum")],
    ids=["torch", "identity"],
)
def test_losses_of_samples(loss):
    trained(PerSample(loss))


def test_no_other_loss():
    class Lone(Adapted):
        def forward(self, x, y):
            return torch.func.grad(lambda x: identity((self.layer(x) - y).square()))(x).sum()

    model = Lone(None)
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="(?s)E0102.*torch.func differentiates itself, test_losses_in_transforms"):
        step(torch.randn(4, 3), torch.randn(4, 3))
