"""The documents' code samples that use several replicas: see sample_programs.py."""

import sys
import types

import numpy
import poptorch
import pytest
import torch
from sample_programs import run


@pytest.fixture(autouse=True)
def forget_the_sample():
    yield
    sys.modules.pop("documents_sample", None)


def test_residual_network_on_two_devices(monkeypatch):
    class Residual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv1, self.bn1 = (
                torch.nn.Conv2d(3, 8, 3, padding=1),
                torch.nn.BatchNorm2d(8, track_running_stats=False),
            )
            self.layer4 = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU(inplace=True))
            self.fc = torch.nn.Linear(8, 10)

        def forward(self, x):
            x = self.bn1(self.conv1(x))
            return self.fc((x + self.layer4(x)).mean([2, 3]))

    torchvision = types.SimpleNamespace(models=types.SimpleNamespace(resnet50=Residual))
    module = run("40", torchvision=torchvision)

    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = module.model
            self.loss = torch.nn.CrossEntropyLoss()

        def forward(self, x, labels):
            out = self.model(x)
            return out, self.loss(out, labels)

    step = poptorch.trainingModel(WithLoss(), module.opts, torch.optim.SGD(module.model.parameters(), lr=0.1))
    data = torch.utils.data.TensorDataset(torch.randn(24, 3, 8, 8), torch.arange(24) % 10)
    loader = poptorch.DataLoader(module.opts, data, batch_size=2)
    losses = [step(*batch)[1].mean().item() for _ in range(6) for batch in loader]
    assert losses[-1] < losses[0]


def test_replica_grouping():
    module = run("14", numpy=numpy)
    whole = torch.tensor(module.prob_X) @ torch.tensor(module.prob_W_init)
    assert module.pt_losses[0] == pytest.approx((whole**2).mean().item(), rel=1e-4)
    assert (numpy.diff(module.pt_losses) < 0).all()
    assert module.pt_W_final.shape == (40, 56) and not (module.pt_W_final == module.prob_W_init).all()
