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
