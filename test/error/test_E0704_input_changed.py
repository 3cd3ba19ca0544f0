"""E0704: another shape than the compiled one."""

import poptorch
import pytest
import torch


def test_error():
    model = poptorch.inferenceModel(torch.nn.ReLU())
    model(torch.ones(3, 1))
    with pytest.raises(poptorch.Error, match="E0704 input-changed") as raised:
        model(torch.ones(2, 1))
    assert "destroy()" in str(raised.value)
    model.destroy()
    model(torch.ones(2, 1))


class Batch:
    def __init__(self, x):
        self.x = x


class Doubles(torch.nn.Module):
    def forward(self, batch):
        return batch.x * 2


def test_tensors_of_objects_are_constants():
    model = poptorch.inferenceModel(Doubles())
    model(Batch(torch.ones(2)))
    with pytest.raises(poptorch.Error, match="E0704 input-changed") as raised:
        model(Batch(torch.zeros(2)))
    assert "registerCustomArgParser" in str(raised.value)


class Adds(torch.nn.Module):
    """Has a buffer with gaps."""

    def __init__(self, strides):
        super().__init__()
        self.register_buffer("offset", gapped(strides))

    def forward(self, x):
        return x + self.offset


def gapped(strides):
    """0 to 5 in two rows. With the strides (1, 10) and (15, 3) the memory has the same size."""
    return torch.zeros(30).as_strided((2, 3), strides).copy_(torch.arange(6.0).view(2, 3))


def exchange(model):
    model.offset = gapped((15, 3))


def move(model):
    model.offset.data = gapped((15, 3))


@pytest.mark.parametrize("change", [exchange, move])
def test_gaps_of_a_buffer_may_not_move(change):
    model = Adds((1, 10))
    executor = poptorch.inferenceModel(model)
    expected = executor(torch.zeros(2, 3))
    change(executor.model)
    with pytest.raises(poptorch.Error, match="E0704 input-changed: offset differs") as raised:
        executor.copyWeightsToDevice()
    assert "destroy()" in str(raised.value)
    with pytest.raises(poptorch.Error, match="E0704 input-changed: offset differs"):
        executor.copyWeightsToHost()
    executor.destroy()
    assert torch.equal(executor(torch.zeros(2, 3)), expected)
