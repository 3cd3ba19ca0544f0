"""E0103: two independent losses."""

import poptorch
import pytest
import torch


class Two(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)

    def forward(self, x):
        y = self.fc(x)
        return torch.nn.functional.mse_loss(y, x), torch.nn.functional.l1_loss(y, x)


def test_error():
    with pytest.raises(poptorch.Error, match="E0103 several-losses") as raised:
        poptorch.trainingModel(Two())(torch.ones(1, 2))
    assert "test_E0103_several_losses.py:15" in str(raised.value)
