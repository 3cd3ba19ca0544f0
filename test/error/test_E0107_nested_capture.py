"""E0107: a model compiles another one while it is compiled. In C++: test/unit/capture/program_test.cc."""

import poptorch
import pytest
import torch

X = torch.linspace(-1, 1, 6).view(2, 3)


def members():
    """What torch.Tensor has, of which a capture replaces some."""
    return {name: getattr(torch.Tensor, name) for name in dir(torch.Tensor) if name != "__class__"}


class Outer(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x[0:1]) + 1


def compiles_another(x):
    return poptorch.inferenceModel(torch.nn.ReLU())(x.detach())


def trains_another(x):
    loss = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Flatten(0))
    loss.forward = lambda x: poptorch.identity_loss(x.sum() * loss[0].bias.sum(), "sum")
    poptorch.trainingModel(loss)(torch.ones(1, 3))
    return x


@pytest.mark.parametrize("call", [compiles_another, trains_another])
def test_a_model_does_not_compile_another_in_its_forward(call):
    before = members()
    with pytest.raises(poptorch.Error, match="E0107 nested-capture"):
        poptorch.inferenceModel(Outer(call))(X)
    assert members() == before
    assert torch.equal(poptorch.inferenceModel(Outer(torch.relu))(X), torch.relu(X[0:1]) + 1)


def test_functions_on_the_host_call_models_that_are_compiled():
    inner = poptorch.inferenceModel(torch.nn.ReLU())
    model = Outer(poptorch.CPU(inner, "inner"))
    before = members()
    with pytest.raises(poptorch.Error, match="E0107 nested-capture"):
        poptorch.inferenceModel(model)(X)
    assert members() == before
    inner(X[0:1])
    outer = poptorch.inferenceModel(model)
    for x in (X, -X):
        assert torch.equal(outer(x), torch.relu(x[0:1]) + 1)
