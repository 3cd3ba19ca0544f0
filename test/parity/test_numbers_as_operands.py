"""Plain numbers where torch makes operands of them."""

import poptorch
import pytest
import torch

X = torch.tensor([1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.vmap(lambda v: v * 2)(x),
        lambda x: torch.vmap(lambda v: v + 0.5)(x.reshape(2, 2)),
        lambda x: torch.vmap(torch.func.grad(lambda v: (v * 3).sin()))(x),
    ],
)
def test_results_are_those_of_eager(function):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    compiled = poptorch.inferenceModel(Model())
    for x in (X, X * -2):
        assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -0.0])
@pytest.mark.parametrize("training", [False, True])
def test_numbers_of_every_kind_are_operands(number, training):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4))

        def forward(self, x):
            y = (x * self.weight).masked_fill(x > 2, number)
            return y, poptorch.identity_loss(y.nan_to_num(posinf=0.0), reduction="sum")

    model, eager = Model(), Model()
    if training:
        found = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))(X)
    else:
        found = poptorch.inferenceModel(model)(X)
    for ours, theirs in zip(found, eager(X), strict=True):
        assert torch.equal(ours.view(torch.int32), theirs.detach().view(torch.int32))
