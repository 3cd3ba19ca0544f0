"""executor.md section 6: copies look tensors up by name when they run."""

import copy

import abele
import poptorch
import pytest
import torch

X, Y = torch.arange(12.0).view(3, 4) / 6 - 1, torch.ones(3, 2)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        self.register_buffer("offset", torch.zeros(4))

    def forward(self, x, y):
        z = self.b(torch.relu(self.a(x) + self.offset))
        return z, torch.nn.functional.mse_loss(z, y)


FRONT_ENDS = [poptorch, abele]
OPTIMIZERS = {
    "torch": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "poptorch": lambda parameters: poptorch.optim.AdamW(parameters, lr=0.1, bias_correction=True),
}


def built_again(model):
    """As a library that takes a module apart to save it: the same names, shapes and values, other tensors."""
    old = model.a
    model.a = torch.nn.Linear(4, 4)
    model.a.load_state_dict(old.state_dict())
    return old


def wrapped(front_end, optimizer="torch"):
    torch.manual_seed(0)
    model = Net()
    twin = copy.deepcopy(model)
    of_model = OPTIMIZERS[optimizer](model.parameters())
    return model, twin, of_model, front_end.trainingModel(model, optimizer=of_model)


def steps_in_eager(twin, count, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(twin.parameters(), lr=0.1)
    for _ in range(count):
        optimizer.zero_grad()
        twin(X, Y)[1].backward()
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_training_goes_on_in_the_tensors_that_the_model_has(front_end):
    model, twin, _, step = wrapped(front_end)
    step(X, Y)
    step.copyWeightsToHost()
    old = built_again(model)
    kept = old.weight.detach().clone()
    step.copyWeightsToHost()
    step(X, Y)
    step.copyWeightsToHost()
    steps_in_eager(twin, 2)
    for name, tensor in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.equal(old.weight, kept)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_reading_a_model_that_was_built_again_gives_the_newest_weights(front_end):
    model, twin, _, step = wrapped(front_end)
    step(X, Y)
    built_again(model)
    step(X, Y)
    steps_in_eager(twin, 2)
    assert torch.equal(model.state_dict()["a.weight"], twin.a.weight)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_state_of_the_optimizer_does_not_notice(front_end, optimizer):
    model, _, of_model, step = wrapped(front_end, optimizer)
    step(X, Y)
    step.copyWeightsToHost()
    built_again(model)
    before = copy.deepcopy(of_model.state_dict())
    step(X, Y)
    step.copyWeightsToHost()
    after = of_model.state_dict()
    if optimizer == "torch":
        assert [entry["step"] for entry in after["state"].values()] == [2.0] * 4
        assert not torch.equal(before["state"][0]["exp_avg"], after["state"][0]["exp_avg"])
    else:
        assert any("a.weight" in name for name in after["ipu_state"])
    step.setOptimizer(of_model)
    step(X, Y)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_what_is_written_into_them_goes_to_the_devices(front_end):
    model, twin, _, step = wrapped(front_end)
    step(X, Y)
    optimizer = steps_in_eager(twin, 1)
    step.copyWeightsToHost()
    built_again(model)
    model.offset = torch.full((4,), 0.5)
    with torch.no_grad():
        for each in (model, twin):
            each.a.weight.fill_(0.25)
        twin.offset.fill_(0.5)
    step.copyWeightsToDevice()
    step(X, Y)
    steps_in_eager(twin, 1, optimizer)
    assert torch.equal(model.state_dict()["a.weight"], twin.a.weight)


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_assigned_state_dicts(front_end):
    model, twin, _, step = wrapped(front_end)
    step(X, Y)
    steps_in_eager(twin, 1)
    given = {name: torch.full_like(tensor, 0.125) for name, tensor in twin.state_dict().items()}
    step.copyWeightsToHost()
    model.load_state_dict(given, assign=True)
    step.copyWeightsToDevice()
    twin.load_state_dict(given)
    assert torch.equal(step(X, Y)[0], twin(X, Y)[0])


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_a_name_that_is_gone_or_has_another_shape_is_named(front_end):
    model, _, _, step = wrapped(front_end)
    step(X, Y)
    step.copyWeightsToHost()
    kept, model.a = model.a, torch.nn.Identity()
    for copied in (step.copyWeightsToHost, step.copyWeightsToDevice):
        with pytest.raises(poptorch.Error, match=r"E0704 .*a\.weight"):
            copied()
    model.a = torch.nn.Linear(4, 5)
    with pytest.raises(poptorch.Error, match=r"E0704 .*a\.weight"):
        step.copyWeightsToDevice()
    model.a = kept
    step.copyWeightsToDevice()
    step(X, Y)
    model.a = torch.nn.Identity()
    step.destroy()
