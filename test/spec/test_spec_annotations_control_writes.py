"""spec annotations.md, section 5: bodies of loops and branches that write into tensors around them.

"Captures: tensors of the enclosing scope may be read"; writes into them do what they do in eager PyTorch.
"""

import copy

import poptorch
import pytest
import torch

pytestmark = pytest.mark.spec("annotations/5/captures")
X = torch.linspace(-1, 1, 24).reshape(4, 6)
YES, NO = torch.tensor([True]), torch.tensor([False])


def loop(count, body, inputs):
    """On a device poptorch's; in eager what it stands for."""
    if poptorch.isRunningOnIpu():
        return poptorch.for_loop(count, body, inputs)
    values = [value.clone() for value in inputs]
    for _ in range(count):
        values = [value.clone() for value in body(*values)]
    return values


class Counting(torch.nn.Module):
    """A buffer, the input and a local tensor, written in every iteration."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.weight = torch.nn.Parameter(torch.full((6,), 0.5))

    def forward(self, x):
        total = torch.zeros(6)
        last = total[4:]

        def body(a):
            self.count.add_(1)
            total.add_((a * self.weight).sum(0))
            last.mul_(self.count)
            x[0] += total
            return [a + x]

        return loop(3, body, [x])[0], total, last, x * 2, self.count * 1


class Branching(torch.nn.Module):
    """Branches that write into the same tensor, into different ones, and into parts of one."""

    def forward(self, condition, x):
        both, first, parts = x * 1, x + 1, x.t() * 2

        def then_body(a):
            both[0] = a[1]
            first.mul_(both)
            parts[1:3].add_(1)
            return a + first.sum()

        def else_body(a):
            parts[2].zero_()
            both.add_(parts.t())
            return a + 1

        if poptorch.isRunningOnIpu():
            result = poptorch.cond(condition, then_body, [x], else_body, [x])[0]
        else:
            result = (then_body if condition else else_body)(x.clone())
        return result, both, first, parts


class BranchInLoop(torch.nn.Module):
    def forward(self, condition, x):
        y = x * 1

        def then_body(a):
            y[0].add_(a[0])
            return a + 1

        def else_body(a):
            y[1:].mul_(2)
            return a * 2

        def body(a):
            if poptorch.isRunningOnIpu():
                return poptorch.cond(condition, then_body, [a], else_body, [a])
            return [(then_body if condition else else_body)(a)]

        return loop(3, body, [x])[0], y


def require_equal(ours, expected):
    assert all(map(torch.equal, ours, expected))


@pytest.mark.spec(names=["poptorch.for_loop"])
@pytest.mark.parametrize("iterations", [1, 2])
def test_a_loop_writes_around_it(iterations):
    model = Counting()
    reference = copy.deepcopy(model)
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(iterations))
    for shift in range(2):
        x = torch.cat([X + shift + i for i in range(iterations)])
        given = x.clone()
        ours = executor(given)
        parts = list(x.split(4))
        with torch.no_grad():
            expected = [reference(part) for part in parts]
        require_equal(ours, [torch.cat(results) for results in zip(*expected, strict=True)])
        assert torch.equal(given, x)  # both were written, row by row
    executor.copyWeightsToHost()
    assert torch.equal(executor.model.count, reference.count)


@pytest.mark.spec(names=["poptorch.cond"])
@pytest.mark.parametrize("model", [Branching(), BranchInLoop()])
def test_branches_write_around_them(model):
    executor = poptorch.inferenceModel(copy.deepcopy(model))
    for condition in (YES, NO, YES, NO):
        require_equal(executor(condition, X.clone()), model(condition, X.clone()))


@pytest.mark.spec(names=["poptorch.for_loop"])
def test_a_loop_that_never_runs_writes_nothing():
    def model(x):
        y = x + 1

        def body(a):
            y.zero_()
            return [a]

        return loop(0, body, [x])[0], y

    class Module(torch.nn.Module):
        def forward(self, x):
            return model(x)

    require_equal(poptorch.inferenceModel(Module())(X), (X, X + 1))


@pytest.mark.spec(names=["poptorch.for_loop"])
def test_a_body_does_not_read_values_from_around_it():
    class Module(torch.nn.Module):
        def forward(self, x):
            total = x.sum()
            return poptorch.for_loop(2, lambda a: a * total.item(), [x])[0]

    with pytest.raises(poptorch.Error, match="E0101"):
        poptorch.inferenceModel(Module())(X)
