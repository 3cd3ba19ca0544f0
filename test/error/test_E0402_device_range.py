"""E0402: a number of devices that cannot be reserved."""

import poptorch
import pytest
import torch


class Cut(torch.nn.Module):
    def forward(self, x):
        for device in range(3):
            with poptorch.Block(ipu_id=device):
                x = x * 2
        return x


def test_error():
    with pytest.raises(poptorch.Error, match="E0402 device-range: the model uses 3 devices") as raised:
        poptorch.inferenceModel(Cut(), poptorch.Options().deviceIterations(3))(torch.ones(3))
    assert "autoRoundNumIPUs" in str(raised.value)
    opts = poptorch.Options().deviceIterations(3).autoRoundNumIPUs()
    assert torch.equal(poptorch.inferenceModel(Cut(), opts)(torch.ones(3)), torch.full((3,), 8.0))
