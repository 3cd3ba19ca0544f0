"""E0101: a branch on a tensor's value."""

import poptorch
import pytest
import torch


class Branches(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


def test_error():
    model = Branches()
    with pytest.raises(poptorch.Error, match="E0101 data-dependent") as raised:
        poptorch.inferenceModel(model)(torch.ones(2))
    assert "test_E0101_data_dependent.py:10" in str(raised.value) and raised.value.code == "E0101"
    assert raised.value.type == "poptorch_cpp_error" and torch.equal(model(torch.ones(2)), torch.full((2,), 2.0))
