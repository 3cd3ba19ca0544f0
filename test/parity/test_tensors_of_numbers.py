"""torch.tensor of a list that holds results of the program is a tensor of the program."""

import poptorch
import pytest
import torch

LISTS = {
    "floats": lambda x, i: torch.tensor([x.sum(), x[1], 2.5]),
    "integers": lambda x, i: torch.tensor([i.max() + 1 - len(x), i[0], 7]),
    "booleans": lambda x, i: torch.tensor([x[0] > x[1], True]),
    "mixed": lambda x, i: torch.tensor([i[0], x[0], True, 3]),
    "integers and a float": lambda x, i: torch.tensor([i[0], 0.5]),
    "half and a number": lambda x, i: torch.tensor([x[0].half(), 2]),
    "double": lambda x, i: torch.tensor([x[0].double(), 2]),
    "complex": lambda x, i: torch.tensor([x[0], 2j]),
    "large integers": lambda x, i: torch.tensor([i[0] + 2**60 + 1, 2**24 + 1], dtype=torch.float32),
    "rows": lambda x, i: torch.tensor([[x[0], x[1]], (i[0], 4)]),
    "tensors as rows": lambda x, i: torch.tensor([[x[0], x[1]], [x[1], x[0]]], dtype=torch.float64),
    "as_tensor": lambda x, i: torch.as_tensor([x[0], x[1]], dtype=torch.bfloat16),
    "one": lambda x, i: torch.tensor([i.sum()]).unsqueeze(1),
}


class Makes(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x, i):
        return self.make(x, i)


@pytest.mark.filterwarnings("ignore:.*ipu")
@pytest.mark.parametrize("make", LISTS.values(), ids=LISTS.keys())
@pytest.mark.parametrize("package", ["abele", "poptorch"])
def test_lists_of_results(make, package):
    model = pytest.importorskip(package).inferenceModel(Makes(make))
    for x, i in ((torch.tensor([1.25, -3.0]), torch.tensor([4, 9])), (torch.tensor([7.5, 0.1]), torch.tensor([5, -2]))):
        ours, theirs = model(x, i), make(x, i)
        if package == "poptorch":  # it narrows types
            theirs = theirs.to(ours.dtype)
        assert ours.dtype == theirs.dtype and torch.equal(ours, theirs)


def test_no_gradient_flows_into_it():
    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x):
            y = x * self.weight
            return poptorch.identity_loss((y * torch.tensor([y[0], 3.0])).sum(), "none")

    net, x = Trained(), torch.tensor([2.0, 5.0])
    step = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.5))
    step(x)
    step.copyWeightsToHost()
    assert torch.equal(net.weight, torch.tensor([1.0, 2.0]) - 0.5 * x * torch.tensor([2.0, 3.0]))


def test_floats_as_integers_are_refused_as_in_eager():
    make = lambda x, i: torch.tensor([x[0]], dtype=torch.int64)  # noqa: E731
    for run in (make, poptorch.inferenceModel(Makes(make))):
        with pytest.raises(TypeError, match="only integer tensors"):
            run(torch.ones(2), torch.ones(2))
