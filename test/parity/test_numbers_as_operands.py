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
