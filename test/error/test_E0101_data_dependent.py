"""E0101: a branch on a tensor's value."""

import poptorch
import pytest
import torch


class Branches(torch.nn.Module):
    def forward(self, x):
        return x * 2 if x.sum() > 0 else x


@pytest.mark.parametrize(
    "read", [lambda x: x.numpy(), lambda x: x.tolist(), lambda x: x.sum().item(), lambda x: x.__array__()]
)
def test_raw_reads(read):
    class Reads(torch.nn.Module):
        def forward(self, x):
            read(torch.ones(2))  # a constant may be read
            read(x)
            return x * 2

    with pytest.raises(poptorch.Error, match="E0101 data-dependent"):
        poptorch.inferenceModel(Reads())(torch.ones(2))
    assert read(torch.ones(2)) is not None


def test_error():
    model = Branches()
    with pytest.raises(poptorch.Error, match="E0101 data-dependent") as raised:
        poptorch.inferenceModel(model)(torch.ones(2))
    assert "test_E0101_data_dependent.py:10" in str(raised.value) and raised.value.code == "E0101"
    assert raised.value.type == "poptorch_cpp_error" and torch.equal(model(torch.ones(2)), torch.full((2,), 2.0))
