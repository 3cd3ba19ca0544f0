"""A program's own use of torch is the same before, while and after it compiles models."""

import numpy
import poptorch
import pytest
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)

    def forward(self, x):
        y = self.layer(x[:, 0:2]) * torch.tensor([torch.tensor(1.0), torch.tensor(1.0)])[0]
        return y, poptorch.identity_loss(y.square(), reduction="mean")


def compile_both():
    model = Net()
    training = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    training(torch.ones(1, 2))
    poptorch.inferenceModel(model)(torch.ones(1, 2))


class Subclass(torch.Tensor):
    def __getitem__(self, index):
        return super().__getitem__(index)


@pytest.mark.parametrize("cls", [torch.Tensor, torch.nn.Parameter, Subclass], ids=lambda cls: cls.__name__)
def test_tensors_without_dimensions_stay_numbers_in_lists(cls):
    compile_both()
    losses = [torch.ones(()).as_subclass(cls), torch.zeros(())]
    assert torch.equal(torch.tensor([torch.tensor(1.0), torch.tensor(2.0)]), torch.tensor([1.0, 2.0]))
    assert numpy.mean([loss.detach() for loss in losses]) == 0.5
    assert torch.ones(2, 3).as_subclass(cls)[0].shape == (3,)


def test_nothing_of_torch_is_replaced():
    homes = [torch, torch.Tensor, torch.nn.Parameter, torch.nn.functional, torch.nn.Module, torch.random]
    homes += [torch.nn.modules.transformer, torch._tensor_str, torch.compiler, torch.optim.Optimizer]
    before = [dict(vars(home)) for home in homes]
    compile_both()
    for home, names in zip(homes, before, strict=True):
        changed = [name for name, value in vars(home).items() if names.get(name) is not value]
        assert [name for name in changed if not name.startswith("__")] == [], home
        assert names.keys() <= vars(home).keys()


def test_anomaly_detection_does_not_stop_a_compilation():
    model = Net()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with torch.autograd.detect_anomaly():
        executor(torch.ones(1, 2))
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert not torch.is_anomaly_enabled()
