"""optim.md sections 2.1, 5 and 6: what setOptimizer takes and refuses after compilation."""

import copy

import poptorch
import pytest
import torch

spec = pytest.mark.spec
X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 5)
        self.second = torch.nn.Linear(5, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.second(torch.tanh(self.first(x))).square(), reduction="mean")


def compiled(make):
    model = Net()
    optimizer = make(model.parameters())
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(X)
    return model, optimizer, executor


def eager_step(model, optimizer):
    optimizer.zero_grad()
    model(X).backward()
    optimizer.step()


def require_same_weights(model, reference):
    for (name, ours), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


@spec("optim/2/SGD", "optim/5", names=["optim.SGD"])
def test_nesterov_may_change():
    arguments = {"lr": 0.1, "momentum": 0.9, "nesterov": True}
    model, ours, executor = compiled(lambda p: poptorch.optim.SGD(p, **arguments))
    reference = Net()
    theirs = torch.optim.SGD(reference.parameters(), **arguments)
    eager_step(reference, theirs)
    for nesterov in (False, True):
        ours.param_groups[0]["nesterov"] = theirs.param_groups[0]["nesterov"] = nesterov
        executor.setOptimizer(ours)
        executor(X)
        eager_step(reference, theirs)
        require_same_weights(model, reference)


@spec("optim/2.1", "optim/2/Adam", names=["optimizer.markAsConstant"])
def test_a_constant_learning_rate_does_not_change():
    def make(parameters):
        optimizer = poptorch.optim.Adam(parameters, lr=1e-3)
        optimizer.variable_attrs.markAsConstant("lr")
        return optimizer

    model, optimizer, executor = compiled(make)
    assert optimizer.variable_attrs.isConstant("lr")
    optimizer.param_groups[0]["lr"] = 0.5
    with pytest.raises(poptorch.Error, match="lr"):
        executor.setOptimizer(optimizer)


@spec("optim/2/SGD", names=["optimizer.velocity_scaling"])
@pytest.mark.parametrize("given", [False, True])
def test_velocity_scaling_changes_where_it_was_given(given):
    extra = {"velocity_scaling": 4.0} if given else {}
    _, optimizer, executor = compiled(
        lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True, **extra)
    )
    optimizer.param_groups[0]["velocity_scaling"] = 8.0
    if given:
        executor.setOptimizer(optimizer)
        return
    with pytest.raises(poptorch.Error, match="velocity_scaling"):
        executor.setOptimizer(optimizer)


@spec("optim/1/RMSprop", "optim/5")
def test_centered_is_part_of_the_program():
    _, optimizer, executor = compiled(lambda p: torch.optim.RMSprop(p, lr=0.1))
    optimizer.param_groups[0]["centered"] = True
    with pytest.raises(poptorch.Error, match="centered"):
        executor.setOptimizer(optimizer)
    model = Net()
    groups = [{"params": [p], "centered": p.dim() == 1} for p in model.parameters()]
    with pytest.raises(AssertionError, match="centered"):
        poptorch.trainingModel(model, None, torch.optim.RMSprop(groups, lr=0.1))


@spec("optim/5", names=["PoplarExecutor.setOptimizer"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
@pytest.mark.parametrize("first", ["torch", "poptorch"])
def test_the_twin_of_the_other_package_goes_on(name, first):
    packages = {"torch": torch.optim, "poptorch": poptorch.optim}
    second = "torch" if first == "poptorch" else "poptorch"
    model, _, executor = compiled(lambda p: getattr(packages[first], name)(p, lr=0.1))
    executor.setOptimizer(getattr(packages[second], name)(model.parameters(), lr=0.01))
    executor(X)
    reference = Net()
    theirs = getattr(torch.optim, name)(reference.parameters(), lr=0.1)
    eager_step(reference, theirs)
    theirs.param_groups[0]["lr"] = 0.01
    eager_step(reference, theirs)
    require_same_weights(model, reference)


@spec("optim/5", names=["PoplarExecutor.setOptimizer"])
def test_a_refused_optimizer_leaves_the_old_one_in_place():
    model, optimizer, executor = compiled(lambda p: poptorch.optim.SGD(p, lr=0.1))
    with pytest.raises(poptorch.Error, match="type of the optimizer"):
        executor.setOptimizer(poptorch.optim.Adam(model.parameters(), lr=0.5))
    for wrong in (None, "SGD"):
        with pytest.raises(AssertionError, match="unsupported optimizer"):
            executor.setOptimizer(wrong)
    reference = copy.deepcopy(model)
    executor(X)
    eager_step(reference, torch.optim.SGD(reference.parameters(), lr=0.1))
    require_same_weights(model, reference)
    assert "scaledLearningRate0___specific___first.weight" in optimizer.state_dict()["ipu_param"]


@spec("optim/2/SGD", "optim/5")
def test_defaults_govern_parameters_of_no_group():
    model = Net()
    optimizer = poptorch.optim.SGD(model.first.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(X)
    optimizer.defaults["lr"] = 0.0
    executor.setOptimizer(optimizer)
    before = copy.deepcopy(model.state_dict())
    executor(X)
    assert torch.equal(model.second.weight, before["second.weight"])
    assert not torch.equal(model.first.weight, before["first.weight"])


@spec("optim/6/after_each_training_call", names=["optimizer.load_state_dict"])
def test_a_loaded_state_brings_its_learning_rate():
    model, optimizer, executor = compiled(lambda p: poptorch.optim.SGD(p, lr=0.1))
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.param_groups[0]["lr"] = 0.5
    executor.setOptimizer(optimizer)
    executor(X)
    reference = copy.deepcopy(model)
    optimizer.load_state_dict(saved)
    executor(X)
    eager_step(reference, torch.optim.SGD(reference.parameters(), lr=0.1))
    require_same_weights(model, reference)


@spec("optim/1/LAMB", names=["optim.LAMB"])
@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"lr": -1.0}, ValueError, "lr is -1.0"),
        ({"eps": -1.0}, ValueError, "eps is -1.0"),
        ({"betas": (0.9, 1.0)}, ValueError, r"betas\[1\] is 1.0"),
        ({"betas": 0.9}, AssertionError, "betas must be a tuple"),
    ],
)
def test_lamb_checks_its_numbers(wrong, error, message):
    with pytest.raises(error, match=message):
        poptorch.optim.LAMB(Net().parameters(), **wrong)


@spec("optim/1/SGD", names=["optimizer.loss_scaling"])
def test_values_that_are_no_numbers_are_refused():
    model = Net()
    with pytest.raises(AssertionError, match="loss_scaling"):
        poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling="a"))(X)


@spec("optim/5", names=["optim.LAMB"])
def test_what_torch_adds_while_it_loads_a_state_is_not_unexpected(caplog):
    model, optimizer, executor = compiled(lambda parameters: poptorch.optim.LAMB(parameters, lr=0.1))
    other = poptorch.optim.LAMB(model.parameters(), lr=0.1)
    other.load_state_dict(optimizer.state_dict())
    executor.setOptimizer(other)
    assert "unexpected" not in caplog.text
    executor(X)


class Overriding(torch.optim.SGD):
    def step(self, closure=None):
        raise AssertionError("the device has steps of its own")


@spec("optim/1/SGD", "optim/5")
def test_a_subclass_is_warned_of_once_for_each_optimizer(caplog):
    def warnings():
        return [record.message for record in caplog.records if "overrides" in record.message]

    model, optimizer, executor = compiled(lambda parameters: Overriding(parameters, lr=0.1))
    assert warnings() == ["Overriding overrides SGD; the device runs its own implementation, so overridden methods "
                          "have no effect"]  # fmt: skip
    optimizer.param_groups[0]["lr"] = 0.2
    executor.setOptimizer(optimizer)
    executor(X)
    executor.destroy()
    executor(X)
    assert len(warnings()) == 1
    executor.setOptimizer(Overriding(model.parameters(), lr=0.1))
    assert len(warnings()) == 2


@spec("optim/1/SGD", "optim/5")
@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_hooks_around_a_step_are_warned_of(register, caplog):
    def of_optimizer(parameters):
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        getattr(optimizer, register)(lambda *arguments: pytest.fail("the device has steps of its own"))
        return optimizer

    _, _, executor = compiled(of_optimizer)
    executor(X)
    assert [register in record.message for record in caplog.records if "hook" in record.message] == [True]


@spec("optim/5", names=["PoplarExecutor.setOptimizer"])
def test_a_rate_that_is_no_number_is_not_a_change(capfd):
    """NaN is not equal to itself, and is sent once all the same."""
    model, optimizer, executor = compiled(lambda parameters: poptorch.optim.SGD(parameters, lr=0.1))
    optimizer.param_groups[0]["lr"] = float("nan")
    executor.setOptimizer(optimizer)
    executor(X)
    executor(X)
    assert "changed on the optimizer" not in capfd.readouterr().err
    assert model.first.weight.isnan().all()
