"""E0714: one of several processes that no launcher started."""

import poptorch
import pytest
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        y = self.layer(x)
        return y, poptorch.identity_loss(y, reduction="mean")


def test_error(monkeypatch):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(poptorch.Error, match="E0714 no-process-group: .*\n.*MASTER_ADDR and MASTER_PORT not set"):
        poptorch.trainingModel(Net(), opts)(torch.ones(1, 2))
