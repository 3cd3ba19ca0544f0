"""Optimizer classes and their attributes."""

import copy
import inspect
import pickle

import abele
import poptorch
import pytest
import torch
from abele import _optimizer_spec


def parameters():
    return [torch.nn.Parameter(torch.ones(2))]


def test_attributes_given_are_variable():
    optimizer = poptorch.optim.SGD(parameters(), lr=0.1, momentum=0.0, use_combined_accum=False)
    attrs = optimizer.variable_attrs
    assert not attrs.isConstant("lr") and not attrs.isConstant("momentum")
    assert attrs.isConstant("loss_scaling") and attrs.isConstant("weight_decay")
    attrs.markAsVariable("loss_scaling")
    attrs.markAsConstant("momentum")
    assert not attrs.isConstant("loss_scaling") and attrs.isConstant("momentum")
    with pytest.raises(AssertionError):
        attrs.markAsConstant("speed")


def test_defaults_and_bases():
    for cls, base in (
        (poptorch.optim.SGD, torch.optim.SGD),
        (poptorch.optim.Adam, torch.optim.Adam),
        (poptorch.optim.AdamW, torch.optim.AdamW),
    ):
        optimizer = cls(parameters(), lr=0.5)
        assert isinstance(optimizer, base) and isinstance(optimizer, poptorch.optim.Optimizer)
        assert optimizer.loss_scaling == 1.0 and optimizer.accum_type == torch.float32
        assert optimizer.param_groups[0]["lr"] == 0.5
    assert poptorch.optim.AdamW(parameters()).defaults["weight_decay"] == 1e-2
    assert list(inspect.signature(poptorch.optim.AdamW).parameters)[:5] == [
        "params",
        "lr",
        "betas",
        "eps",
        "weight_decay",
    ]
    with pytest.raises(AssertionError):
        poptorch.optim.Adam(parameters(), accum_type=torch.int32)
    with pytest.raises(ValueError):
        poptorch.optim.SGD(parameters(), lr=-1.0)


def test_state_dicts():
    optimizer = poptorch.optim.Adam(parameters(), lr=0.1, loss_scaling=2.0)
    state = optimizer.state_dict()
    assert state["ipu_state"] is None and state["ipu_param"] is None and state["param_groups"][0]["lr"] == 0.1
    other = poptorch.optim.Adam(parameters(), lr=0.2)
    other.load_state_dict(state)
    assert other.param_groups[0]["lr"] == 0.1 and not other.has_state()
    for wrong in ({}, torch.optim.Adam(parameters()).state_dict()):
        with pytest.raises(RuntimeError):
            other.load_state_dict(wrong)
    other.load_state_dict({**state, "ipu_state": {"Accl1___w": torch.ones(1)}, "ipu_param": {}})
    assert other.has_state() and other.ipu_state_is_dirty
    for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other))):
        assert copied.has_state() and copied.ipu_state_is_dirty and copied.loss_scaling == 1.0
        assert not copied.variable_attrs.isConstant("lr")


def test_schedulers_attach():
    optimizer = poptorch.optim.SGD(parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5
    copy.deepcopy(optimizer)


def test_kinds(caplog):
    class Mine(torch.optim.Adam):
        pass

    class Foreign(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

    assert _optimizer_spec.kind_of(torch.optim.SGD(parameters(), 0.1)) == "SGD"
    assert _optimizer_spec.kind_of(torch.optim.AdamW(parameters())) == "AdamW"
    assert _optimizer_spec.kind_of(poptorch.optim.AdamW(parameters())) == "AdamW"
    assert _optimizer_spec.kind_of(Mine(parameters())) == "Adam"
    assert not caplog.records
    for wrong in (Foreign(parameters()), torch.optim.Adagrad(parameters())):
        with pytest.raises(AssertionError, match="unsupported optimizer"):
            _optimizer_spec.kind_of(wrong)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return poptorch.identity_loss(self.w * x, "sum")


def test_constants_may_not_change():
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(2))
    optimizer.param_groups[0]["lr"] = 0.2
    executor.setOptimizer(optimizer)
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(poptorch.Error, match="E0706") as raised:
        executor.setOptimizer(optimizer)
    assert "param_groups[0]['momentum'] of the optimizer is fixed" in str(raised.value)
    assert "variable" in str(raised.value) and "constant 0" in str(raised.value)


def test_wrong_values_are_the_exceptions_that_pytorch_has():
    model = Scaled()
    for name, wrong, error, said in (
        ("amsgrad", True, ValueError, "E0706 optimizer: amsgrad=True is not supported"),
        ("lr", "fast", AssertionError, "E0706 optimizer: lr of the optimizer is 'fast'"),
        ("lr", True, AssertionError, "E0706 optimizer: lr of the optimizer is True"),
        ("betas", (0.9, 0.99, 0.999), AssertionError, "E0706 optimizer: betas are (0.9, 0.99, 0.999)"),
    ):
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.param_groups[0][name] = wrong
        with pytest.raises(error) as raised:
            poptorch.trainingModel(model, optimizer=optimizer)
        assert isinstance(raised.value, poptorch.Error) and raised.value.code == "E0706"
        assert said in str(raised.value)


class Regression(torch.nn.Linear):
    def forward(self, x):
        return torch.nn.functional.mse_loss(super().forward(x), x)


@pytest.mark.parametrize("package", [abele, poptorch])
def test_checkpoints_of_torchs_optimizers_while_they_train(package):
    def made(of=None):
        model = Regression(2, 2) if of is None else copy.deepcopy(of)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    model, optimizer = made()
    reference, theirs = made(model)
    x = torch.ones(3, 2)
    executor = package.trainingModel(model, optimizer=optimizer)

    def step(executor):
        theirs.zero_grad()
        loss = reference(x)
        loss.backward()
        theirs.step()
        assert torch.equal(executor(x), loss)

    step(executor), step(executor)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    assert saved[1]["state"][0]["step"] == 2
    optimizer.load_state_dict(saved[1])
    assert optimizer.state_dict()["state"][0]["step"] == 2  # not asked of the device
    executor.destroy()
    model, optimizer = made()
    model.load_state_dict(saved[0]), optimizer.load_state_dict(saved[1])
    executor = package.trainingModel(model, optimizer=optimizer)
    step(executor), step(executor)
    assert torch.equal(model.weight, reference.weight)


def test_names_of_torchs_state_that_no_device_keeps_are_warned_of(capfd):
    model = Regression(2, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    executor = abele.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(3, 2))
    saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    executor(torch.ones(3, 2))
    assert "left out" not in capfd.readouterr().err
    saved["state"][0]["exp_avg_cubed"] = torch.ones(2, 2)
    optimizer.load_state_dict(saved)
    executor(torch.ones(3, 2))
    said = capfd.readouterr().err
    assert said.count("left out") == 1 and "optimizer state exp_avg_cubed of weight is left out" in said, said


def test_tensors_among_the_numbers_are_named(caplog):
    optimizer = torch.optim.Adam(parameters(), lr=torch.tensor(0.01))
    _optimizer_spec.native_of(optimizer, poptorch.trainingModel(torch.nn.Linear(1, 1))._policy)
    assert "lr of param_groups[0] is a tensor" in caplog.text


def test_values_of_other_libraries_are_numbers():
    numpy = pytest.importorskip("numpy")
    model = Scaled()
    for lr in (numpy.float32(0.5), torch.tensor(0.5), 1):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0]["lr"] = lr
        with torch.no_grad():
            model.w.fill_(1)
        executor = poptorch.trainingModel(model, optimizer=optimizer)
        executor(torch.ones(2))
        assert model.w.tolist() == [1 - float(lr)] * 2
        executor.destroy()


@pytest.mark.parametrize("package", [poptorch, abele])
def test_a_state_that_was_loaded_and_not_used_yet_outlives_the_program(package, tmp_path):
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = package.trainingModel(model, optimizer=optimizer)
    executor(torch.ones(2))
    executor.copyWeightsToHost()
    saved = copy.deepcopy(optimizer.state_dict())
    executor(torch.full((2,), 5.0))
    optimizer.load_state_dict(copy.deepcopy(saved))
    executor.save(tmp_path / "file")  # looks at the state
    executor.destroy()
    buffer, expected = (state["state"][0]["momentum_buffer"] for state in (optimizer.state_dict(), saved))
    assert torch.equal(buffer, expected)
