"""out= tensors of another shape are resized, as eager does."""

import poptorch
import pytest
import torch

X = torch.arange(6.0).reshape(2, 3)


def computed(x):
    out = torch.ones(4) * x.sum()
    torch.mul(x, 2, out=out)
    return out + 1


def shrunk(x):
    out = torch.zeros(5, 7)
    torch.sum(x, 1, out=out)
    return out * 2


def twice(x):
    out = torch.zeros(2)
    torch.add(x, 1, out=out)
    torch.matmul(x, x.t(), out=out)
    return out - 1


def chained(x):
    out = torch.zeros(2, 3)
    torch.chain_matmul(x, x.t(), x, out=out)
    return out * 2


def several(x):
    values, places = torch.zeros(7), torch.zeros(1, dtype=torch.long)
    torch.max(x, 1, out=(values, places))
    return values * 2, places


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated")
@pytest.mark.parametrize("function", [computed, shrunk, twice, chained, several])
def test_results_are_those_of_eager(function):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    compiled = poptorch.inferenceModel(Model())
    for x in (X, X * -3):
        ours, theirs = compiled(x), function(x)
        for a, b in zip(torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs), strict=True):
            assert torch.equal(a, b.to(a.dtype)) and a.shape == b.shape


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_memory_of_the_caller_is_not_resized():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.add(x.sum(0), 1, out=x)

    with pytest.raises(poptorch.Error, match="E0106 unsupported-op: an operator that resizes"):
        poptorch.inferenceModel(Model())(X)
