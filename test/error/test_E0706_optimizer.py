"""E0706: a constant of the optimizer that changes."""

import poptorch
import pytest
import torch


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return poptorch.identity_loss(self.w * x, "sum")


def test_error():
    model = Loss()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(2))
    optimizer.param_groups[0]["weight_decay"] = 0.1
    with pytest.raises(poptorch.Error, match="E0706 optimizer") as raised:
        executor.setOptimizer(optimizer)
    assert "markAsVariable" in str(raised.value)


def test_constants_of_optimizers_without_marks():
    model = Loss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(2))
    optimizer.param_groups[0]["betas"] = (0.5, 0.5)  # no scheduler said so
    with pytest.raises(poptorch.Error, match="E0706 optimizer") as raised:
        executor.setOptimizer(optimizer)
    assert "torch's own optimizers have no marks" in str(raised.value)


@pytest.mark.parametrize("norm", ["0.5", [0.5], 1 + 0j, True, 10**400, torch.ones(2)])
def test_norms_that_are_no_numbers(norm):
    model = Loss()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, max_grad_norm=norm)
    with pytest.raises(AssertionError, match="max_grad_norm of the optimizer is"):
        poptorch.trainingModel(model, optimizer=optimizer)


@pytest.mark.parametrize(
    ("kind", "name"), [("LAMB", "bias_correction"), ("RMSprop", "use_tf_variant"), ("SGD", "use_combined_accum")]
)
def test_flags_that_are_texts(kind, name):
    """ "False" is true to Python."""
    model = Loss()
    make = getattr(poptorch.optim, kind)
    with pytest.raises(AssertionError, match=f"{name} must be True or False, got 'False'"):
        make(model.parameters(), lr=0.1, **{name: "False"})
    optimizer = make(model.parameters(), lr=0.1, **{name: 0})
    setattr(optimizer, name, "False")
    with pytest.raises(AssertionError, match=f"{name} of the optimizer is 'False'"):
        poptorch.trainingModel(model, optimizer=optimizer)


@pytest.mark.parametrize("rate", [10**400, torch.tensor([0.1, 0.2]), 10**5000], ids=["large", "two", "larger"])
def test_rates_that_no_number_holds(rate):
    model = Loss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(2))
    optimizer.param_groups[0]["lr"] = rate
    with pytest.raises(AssertionError, match="lr of the optimizer is"):
        executor.setOptimizer(optimizer)
    optimizer.param_groups[0]["lr"] = 0.1
    executor.setOptimizer(optimizer)
    executor(torch.ones(2))


def test_other_numbers_that_are_texts():
    model = Loss()
    with pytest.raises(AssertionError, match="max_weight_norm is '1', expected a number"):
        poptorch.optim.LAMB(model.parameters(), max_weight_norm="1")
    optimizer = poptorch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling="2"
    )
    with pytest.raises(AssertionError, match="velocity_scaling of the optimizer is '2'"):
        poptorch.trainingModel(model, optimizer=optimizer)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: 3,
        lambda state: [state],
        lambda state: {**state, "ipu_state": [1]},
        lambda state: {**state, "ipu_state": dict.fromkeys(state["ipu_state"], "x")},
        lambda state: {**state, "ipu_state": {1: torch.ones(1)}},
        lambda state: {**state, "ipu_param": 3},
        lambda state: {**state, "ipu_param": dict.fromkeys(state["ipu_param"], "x")},
    ],
)
def test_states_that_hold_other_things(change):
    model = Loss()
    optimizer = poptorch.optim.Adam(model.parameters())
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(torch.ones(2))
    state = optimizer.state_dict()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="state") as raised:
        optimizer.load_state_dict(change(state))
    assert isinstance(raised.value, poptorch.Error)
    executor(torch.ones(2))
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    executor.copyWeightsToDevice()
    optimizer.load_state_dict(state)
    executor(torch.ones(2))
    assert all(torch.equal(value, after[name]) for name, value in model.state_dict().items())
