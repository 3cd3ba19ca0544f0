"""E0609: a result of int64 that the int32 of poptorch's results does not hold."""

import poptorch
import pytest
import torch


class Echo(torch.nn.Module):
    def forward(self, x):
        return x


def test_error():
    executor = poptorch.inferenceModel(Echo())
    assert executor(torch.tensor([2**31 - 1, -(2**31)])).tolist() == [2**31 - 1, -(2**31)]
    with pytest.raises(poptorch.Error, match="E0609 integer-range") as raised:
        executor(torch.tensor([5, 2**40]))
    text = str(raised.value)
    assert "result 0" in text and str(2**40) in text and "abele.inferenceModel" in text
    assert executor(torch.tensor([1, 2])).tolist() == [1, 2]
