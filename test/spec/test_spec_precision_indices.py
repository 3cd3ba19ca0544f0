"""environment.md section 11: integers are of 32 bits on the device, so that every operator takes such indices."""

import poptorch
import pytest
import torch
from torch.nn import functional

INDEX = torch.tensor([[0, 1], [1, 0]])
OPERATORS = {
    "cross_entropy": lambda x, i: functional.cross_entropy(x, i[0]),
    "cross_entropy 2d": lambda x, i: functional.cross_entropy(x.reshape(1, 2, 2).expand(2, 2, 2), i),
    "gather": lambda x, i: torch.gather(x, 1, i),
    "index": lambda x, i: x[i[0], i[1]],
    "index_add": lambda x, i: x.index_add(0, i[0], x),
    "index_copy": lambda x, i: x.index_copy(0, i[0], x * 2),
    "index_fill": lambda x, i: x.index_fill(0, i[0, :1], 2.0),
    "index_put": lambda x, i: x.index_put((i[0],), x * 2),
    "index_select": lambda x, i: x.index_select(0, i[0]),
    "multi_margin_loss": lambda x, i: functional.multi_margin_loss(x, i[0]),
    "nll_loss": lambda x, i: functional.nll_loss(x.log_softmax(1), i[0], reduction="none"),
    "one_hot": lambda x, i: functional.one_hot(i[0], 2) * x,
    "scatter": lambda x, i: (x * 1).scatter(1, i, x * 2),
    "scatter_ of a value": lambda x, i: (x * 1).scatter_(1, i, 3.0),
    "scatter_add of rows": lambda x, i: x.new_zeros(3, 2).scatter_add_(0, i[0][:, None].expand(2, 2), x),
    "scatter_reduce": lambda x, i: x.scatter_reduce(1, i, x, "amax"),
    "take": lambda x, i: torch.take(x, i),
    "take_along_dim": lambda x, i: torch.take_along_dim(x, i, 1) + x.take_along_dim(indices=i, dim=0),
}


@pytest.mark.spec("environment/11/integers")
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_takes_indices_of_32_bits(name):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([[0.5, -1.0], [2.0, 0.25]]))

        def forward(self, x, index):
            y = OPERATORS[name](x * self.weight, index)
            return y, poptorch.identity_loss(y.square(), reduction="sum")

    x = torch.tensor([[1.0, 2.0], [-3.0, 4.0]])
    model, reference = Net(), Net()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        ours, expected = executor(x, INDEX.int()), reference(x, INDEX)
        optimizer.zero_grad()
        expected[1].backward()
        optimizer.step()
        assert torch.equal(ours[0], expected[0]) and torch.equal(ours[1], expected[1])
    assert torch.equal(model.weight, reference.weight)


class Histogram(torch.nn.Module):
    def forward(self, x, weights):
        known = torch.bincount(torch.tensor([1, 5]), minlength=3)  # more bins than asked for: the values are known
        return torch.bincount(x, minlength=6), torch.bincount(x, weights, 6), known


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_bincount_of_a_known_number_of_bins(dtype):
    executor = poptorch.inferenceModel(Histogram())
    for values in ([1, 0, 3, 1], [0, 0, 5, 5]):
        x, weights = torch.tensor(values, dtype=dtype), torch.tensor([0.5, 1.0, 2.0, 4.0])
        ours, expected = executor(x, weights), Histogram()(x, weights)
        assert all(torch.equal(a, b.to(a.dtype)) and a.shape == b.shape for a, b in zip(ours, expected, strict=True))
    with pytest.raises(poptorch.Error, match="a value is 6, and minlength 6 fixes the shape"):
        executor(torch.tensor([6, 0, 0, 0], dtype=dtype), weights)
