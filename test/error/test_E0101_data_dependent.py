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


@pytest.mark.parametrize(
    "shape",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.unique(x),
        lambda x: torch.repeat_interleave(x, x.long()),
        lambda x: torch.bincount(x.long()),
    ],
)
def test_shapes_that_depend_on_values(shape):
    class Model(torch.nn.Module):
        def forward(self, x):
            return shape(x)

    with pytest.raises(poptorch.Error, match="E0101 data-dependent: an operator whose result has another shape"):
        poptorch.inferenceModel(Model())(torch.ones(4))


def test_shapes_that_depend_on_constants():
    class Model(torch.nn.Module):
        def forward(self, x):
            chosen = torch.tensor([True, False, True])
            return x[chosen], x[torch.arange(3).nonzero()], torch.repeat_interleave(x, 2)

    x = torch.tensor([1.0, 2.0, 3.0])
    for ours, theirs in zip(poptorch.inferenceModel(Model())(x), Model()(x), strict=True):
        assert torch.equal(ours, theirs)
