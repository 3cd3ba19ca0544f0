"""Elements at positions that are tensors without dimensions, and sources compiled inside forward: equal to eager."""

import poptorch
import pytest
import torch
from torch import nn


def assign(*index, value):
    def assigned(x, i):
        y = x.clone()
        y[tuple(i if item == "i" else item for item in index)] = value(x)
        return y

    return assigned


def add_in_place(x, i):
    y = x.clone()
    y[:, i] += 1
    return y


READS = {
    "first": lambda x, i: x[i],
    "second": lambda x, i: x[:, i],
    "last": lambda x, i: x[..., i],
    "from the end": lambda x, i: x[..., i - 3],
    "twice": lambda x, i: x[i, :, None, i],
    "with numbers and slices": lambda x, i: x[-1, i, 1:3],
}
WRITES = {
    "number": assign(slice(None), "i", value=lambda x: 2),
    "tensor": assign(slice(None), "i", value=lambda x: x[:, 0] * 3),
    "integers, broadcast": assign(..., "i", value=lambda x: torch.arange(3)),
    "twice": assign("i", slice(None), "i", value=lambda x: x[0, :, 0]),
    "in place": add_in_place,
}


class Apply(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(2, 3, 4))

    def forward(self, x, i):
        y = self.function(x * self.scale, i[0])
        return y, poptorch.identity_loss((y**2).sum(), "none")


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", [*READS, *(f"write: {name}" for name in WRITES)])
def test_position_changes_between_calls(name, dtype):
    function = READS[name] if name in READS else WRITES[name.removeprefix("write: ")]
    ours, theirs = Apply(function), Apply(function)
    inference = poptorch.inferenceModel(Apply(function))
    training = poptorch.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for position in (1, 0):
        x, i = torch.randn(2, 3, 4), torch.tensor([position], dtype=dtype)
        assert torch.equal(inference(x, i)[0], function(x, i[0]))
        y, loss = theirs(x, i)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert torch.equal(training(x, i)[0], y)
    training.copyWeightsToHost()
    assert torch.equal(ours.scale, theirs.scale)


def test_nothing_of_it_stays():
    before = torch.Tensor.__setitem__, torch.Tensor.__getitem__
    poptorch.inferenceModel(Apply(WRITES["number"]))(torch.randn(2, 3, 4), torch.tensor([1]))
    assert (torch.Tensor.__setitem__, torch.Tensor.__getitem__) == before


def test_forward_compiles_source_code():
    def twice(x):
        return x + torch.zeros(4) + torch.arange(4)

    class Scripts(nn.Module):
        def forward(self, x):
            return torch.jit.script(twice)(x)

    x = torch.randn(2, 4)
    assert torch.equal(poptorch.inferenceModel(Scripts())(x), twice(x))


def test_forward_mode_derivative():
    class Derivative(nn.Module):
        def forward(self, x):
            return torch.func.jvp(torch.sin, (x,), (x,))[1]

    x = torch.randn(2, 4)
    assert torch.equal(poptorch.inferenceModel(Derivative())(x), torch.func.jvp(torch.sin, (x,), (x,))[1])


def test_forward_mode_derivative_beside_attention():
    """Torch asks its own Python code for the shape of a sum, without the modes of the capture."""

    class Derivative(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            self.attention = nn.MultiheadAttention(4, 2)

        def forward(self, x):
            value, slope = torch.func.jvp(self.layer, (x,), (x.detach() * 0.1,))
            return self.attention(value, slope, slope)[0]

    x, model = torch.randn(3, 2, 4), Derivative().eval()
    assert torch.equal(poptorch.inferenceModel(model)(x), model(x))
