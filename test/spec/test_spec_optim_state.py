"""optim.md sections 1, 2 and 6: values that are refused, foreign groups, device state."""

import copy
import pickle

import poptorch
import pytest
import torch

spec = pytest.mark.spec
X = torch.ones(2, 4)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.layer = torch.nn.Linear(4, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))

    def forward(self, x):
        return poptorch.identity_loss(self.layer(x).square(), reduction="mean")


@spec("optim/1/Adam")
def test_bad_values_are_refused_when_a_model_gets_them():
    model = Net()
    with pytest.raises(ValueError, match="amsgrad"):
        poptorch.trainingModel(model, None, torch.optim.Adam(model.parameters(), amsgrad=True))
    for name, wrong in (("betas", [0.9, 0.99]), ("betas", 0.9), ("lr", "fast")):
        optimizer = torch.optim.Adam(model.parameters())
        optimizer.param_groups[0][name] = wrong
        with pytest.raises(AssertionError, match=name):
            poptorch.trainingModel(model, None, optimizer)
    poptorch.trainingModel(model, None, torch.optim.Adam(model.parameters()))(X)


@spec("optim/1/SGD", names=["optimizer.accum_type"])
def test_bad_accumulation_types_set_later_are_value_errors():
    model = Net()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(X)
    optimizer.accum_type = torch.float64
    with pytest.raises(ValueError, match="accum_type"):
        executor.setOptimizer(optimizer)


@spec("optim/6/after_each_training_call", names=["optimizer.load_state_dict"])
def test_names_of_a_state_that_nobody_keeps_are_warned_of(caplog, capfd):
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters())
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(X)
    state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    executor(X)
    assert "left out" not in capfd.readouterr().err + caplog.text
    strange = {**state["ipu_state"], "Accl1___layer.wieght": torch.ones(4, 4), "Accl9___layer.weight": torch.ones(4, 4)}
    optimizer.load_state_dict({**state, "ipu_state": strange, "epoch": 3})
    assert "'epoch' is left out" in caplog.text
    capfd.readouterr()
    executor(X)
    said = capfd.readouterr().err
    assert "Accl1___layer.wieght of the loaded state is left out" in said
    assert "Accl9___layer.weight of the loaded state is left out" in said
    assert said.count("left out") == 2 and "keeps its value" not in said, said
    assert optimizer.state_dict()["ipu_state"].keys() == state["ipu_state"].keys()


@spec("optim/6/before_compile", names=["optimizer.state_dict", "optimizer.has_state"])
def test_no_device_state_without_a_device():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters())
    assert optimizer.state_dict()["ipu_state"] is None and optimizer.state_dict()["ipu_param"] is None
    opts = poptorch.Options()
    opts.useOfflineIpuTarget()
    executor = poptorch.trainingModel(model, opts, optimizer)
    executor.compile(X)
    state = optimizer.state_dict()
    assert state["ipu_state"] is None and state["ipu_param"] is None and not optimizer.has_state()


@spec("optim/5", "optim/2/LAMB", "optim/6/compiled_attached", names=["optim.LAMB", "optimizer.markAsConstant"])
def test_groups_with_foreign_keys_and_schedulers():
    model = Net()
    groups = [
        {"params": [model.layer.weight], "weight_decay": 0.1, "max_weight_norm": 5.0, "note": "decayed"},
        {"params": [model.layer.bias], "weight_decay": 0.0, "initial_lr": 1e-3},
    ]
    optimizer = poptorch.optim.LAMB(groups, lr=1e-3)
    optimizer.variable_attrs.markAsConstant("weight_decay")
    optimizer._step_count = 1
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    executor = poptorch.trainingModel(model, None, optimizer)
    for _ in range(3):
        executor(X)
        scheduler.step()
        executor.setOptimizer(optimizer)
    parameters = optimizer.state_dict()["ipu_param"]
    assert parameters["learningRate___specific___layer.weight"].item() == pytest.approx(1e-3 / 8)
    assert parameters["weightDecay___specific___layer.weight"].item() == pytest.approx(0.1)
    assert parameters["weightDecay___specific___layer.bias"].item() == 0


@spec("optim/6/before_compile", names=["optimizer.load_state_dict"])
def test_torch_states_with_none_for_the_device_are_loaded():
    model = Net()
    other = torch.optim.AdamW(model.parameters(), lr=0.25).state_dict()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=1e-2)
    optimizer.load_state_dict({"ipu_state": None, "ipu_param": None, **other})
    assert optimizer.param_groups[0]["lr"] == 0.25 and not optimizer.has_state()
    poptorch.trainingModel(model, None, optimizer)(X)


@spec("optim/6/detach", names=["optimizer.state_dict"])
def test_copies_upload_their_state():
    model = Net()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=1e-2)
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(X)
    for twin in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
        assert twin.ipu_state_is_dirty and twin.has_state() and not twin.variable_attrs.isConstant("lr")
    assert not copy.deepcopy(poptorch.optim.Adam(model.parameters())).ipu_state_is_dirty
    executor.destroy()
    assert optimizer.state_dict()["ipu_state"]["Accl1___layer.weight"].abs().sum() > 0


@spec("executor/6/save", "optim/5", names=["optimizer.load_state_dict", "PoplarExecutor.save"])
def test_a_state_that_was_loaded_and_not_used_yet_is_saved(tmp_path):
    model = Net()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    executor = poptorch.trainingModel(model, None, optimizer)
    executor(X)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    expected = [executor(X).item() for _ in range(3)]
    executor.load_state_dict(weights)
    optimizer.load_state_dict(state)
    executor.save(tmp_path / "file")
    for continued in (poptorch.load(tmp_path / "file"), executor):
        assert [continued(X).item() for _ in range(3)] == expected


class PartsOfOneStorage(torch.nn.Module):
    def __init__(self):
        super().__init__()
        both = torch.linspace(-1, 1, 8).reshape(2, 4)
        self.first, self.second = torch.nn.Parameter(both[0]), torch.nn.Parameter(both[1])

    def forward(self, x):
        return poptorch.identity_loss((x * self.first + self.second).square(), reduction="mean")


@spec("optim/5", names=["PoplarExecutor.setOptimizer"])
def test_parameters_that_are_parts_of_one_storage_keep_their_groups():
    def make(model):
        groups = [{"params": [model.first], "lr": 0.5}, {"params": [model.second]}]
        return torch.optim.SGD(groups, lr=0.1)

    model, eager = PartsOfOneStorage(), PartsOfOneStorage()
    executor, optimizer = poptorch.trainingModel(model, None, make(model)), make(eager)
    executor(X)
    eager(X).backward()
    optimizer.step()
    assert torch.equal(model.first, eager.first) and torch.equal(model.second, eager.second)
