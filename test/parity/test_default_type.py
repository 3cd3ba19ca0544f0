"""torch's default type inside of forward and between calls."""

import abele
import poptorch
import pytest
import torch


@pytest.fixture(autouse=True)
def float32_at_the_end():
    yield
    torch.set_default_dtype(torch.float32)


def made(x):
    return torch.zeros(3) + x, torch.arange(0.0, 3.0, 0.5), torch.full((2,), 1.5), torch.eye(2), torch.tensor(2.5) * x


def masked(n):
    return (1.0 - n) * -1e4, n / 3, n.sqrt(), n**0.5


class Plain(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x)


class WithType(Plain):
    def __init__(self, make, dtype=torch.float64):
        super().__init__(make)
        self.dtype = dtype

    def forward(self, x):
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.dtype)
        try:
            return self.make(x)
        finally:
            torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("program", [made, lambda x: (torch.rand(3), torch.randn(2, 2), torch.randperm(4))])
def test_inside_of_forward(program, dtype):
    forward, x = WithType(program, dtype), torch.randn(3)
    model = abele.inferenceModel(forward, abele.Options().randomSeed(3))
    for _ in range(2):
        ours = model(x)
    torch.manual_seed(3)
    forward(x)
    for found, expected in zip(ours, forward(x), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)


def test_between_calls_a_program_keeps_its_types(caplog):
    model, of_integers = abele.inferenceModel(Plain(made)), abele.inferenceModel(Plain(masked))
    x, n = torch.randn(3), torch.arange(5)
    before = model(x), of_integers(n)
    torch.set_default_dtype(torch.float64)
    after = model(x), of_integers(n)
    assert torch.get_default_dtype() == torch.float64
    for found, expected in zip(sum(after, ()), sum(before, ()), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
    assert "default_dtype" in caplog.text


def test_integers_that_become_the_default_type():
    model = abele.inferenceModel(WithType(lambda n: n / 3))
    with pytest.raises(poptorch.Error, match="(?s)E0106.*test_default_type.*Double, and was Float"):
        model(torch.arange(3))
    as_before = abele.inferenceModel(WithType(lambda n: n.to(torch.float32) / 3))
    assert torch.equal(as_before(torch.arange(3)), torch.arange(3) / 3)
