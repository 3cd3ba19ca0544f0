"""Forward computes with tensors that require a gradient and are not parameters of the model. They are not trained."""

import poptorch
import pytest
import torch


class Model(torch.nn.Module):
    def __init__(self, held, trains=True):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.held = [torch.nn.Linear(4, 4)] if held == "list" else torch.ones(4, requires_grad=True)
        self.trains = trains

    def forward(self, x):
        with torch.set_grad_enabled(self.trains and torch.is_grad_enabled()):
            hidden = self.held[0](x) if isinstance(self.held, list) else x * self.held
        return poptorch.identity_loss(self.layer(hidden), reduction="mean")


X = torch.arange(8.0).reshape(2, 4)


@pytest.mark.parametrize(("held", "name"), [("list", "held[0].weight"), ("tensor", "held")])
def test_a_warning_names_it(held, name, capfd):
    poptorch.trainingModel(Model(held))(X)
    warning = capfd.readouterr().err
    assert f"{name} (" in warning and "is not a parameter of the model" in warning


def test_the_optimizer_may_not_have_it():
    model = Model("tensor")
    optimizer = torch.optim.SGD([*model.parameters(), model.held], lr=0.1)
    with pytest.raises(poptorch.Error, match="E0706 .*is not a parameter of the model"):
        poptorch.trainingModel(model, optimizer=optimizer)(X)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("held", ["list", "tensor"])
def test_it_is_a_constant(held, trains):
    model = Model(held, trains)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    eager = Model(held, trains)
    eager.load_state_dict(model.state_dict())
    if held == "list":
        eager.held[0].load_state_dict(model.held[0].state_dict())
    compiled = poptorch.trainingModel(model, optimizer=optimizer)
    eager_optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(2):
        eager_optimizer.zero_grad()
        loss = eager(X)
        loss.backward()
        eager_optimizer.step()
        assert torch.equal(compiled(X), loss.detach())
    compiled.copyWeightsToHost()
    assert torch.equal(model.layer.weight, eager.layer.weight)


def test_inference_takes_it_as_it_is():
    model = Model("list")
    assert torch.equal(poptorch.inferenceModel(model)(X), model(X).detach())
