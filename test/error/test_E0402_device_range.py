"""E0402: a number of devices that cannot be reserved."""

import poptorch
import pytest
import torch


class Cut(torch.nn.Module):
    def __init__(self, devices=3):
        super().__init__()
        self.devices = devices

    def forward(self, x):
        for device in range(self.devices):
            with poptorch.Block(ipu_id=device):
                x = x * 2
        return x


class Far(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block(ipu_id=0):
            x = x * 2
        with poptorch.Block(ipu_id=64):
            return x + 1


@pytest.mark.parametrize("iterations", [1, 2])
def test_devices_are_looked_at_before_the_pipelines_minimum(iterations):
    executor = poptorch.inferenceModel(Far(), poptorch.Options().deviceIterations(iterations))
    with pytest.raises(poptorch.Error, match="E0402 device-range: the model uses 65 devices"):
        executor(torch.ones(2))
    assert not executor.isCompiled()
    opts = poptorch.Options().deviceIterations(iterations).useIpuId(0)
    with pytest.raises(poptorch.Error, match="E0402 device-range: the device group 0 is too small"):
        poptorch.inferenceModel(Cut(2), opts)(torch.ones(2))


def test_error():
    with pytest.raises(poptorch.Error, match="E0402 device-range: the model uses 3 devices") as raised:
        poptorch.inferenceModel(Cut(), poptorch.Options().deviceIterations(3))(torch.ones(3))
    assert "autoRoundNumIPUs" in str(raised.value)
    opts = poptorch.Options().deviceIterations(3).autoRoundNumIPUs()
    assert torch.equal(poptorch.inferenceModel(Cut(), opts)(torch.ones(3)), torch.full((3,), 8.0))
