"""The capture is invisible: programs, ATen's composite operators and autograd run what they run in eager PyTorch."""

import sys
from pathlib import Path

import abele
import networks
import poptorch
import pytest
import torch
from torch.utils import _python_dispatch as python_dispatch
from torch.utils import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import operator_sequences


def recorded(executor):
    return executor._executable.session.capturedText()


class Apply(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_a_training_step_records_what_eager_runs(name):
    torch.manual_seed(0)
    ours = networks.NETWORKS[name]()
    torch.manual_seed(0)
    theirs = networks.NETWORKS[name]()
    batch = ours.batch(2)
    parameters = [p for p in theirs.parameters() if p.requires_grad]
    start = torch.ones(())

    def step():
        _, loss = theirs(*batch)
        return torch.autograd.grad(loss, parameters, start, allow_unused=True)

    _, eager = operator_sequences.watched(step)
    executor = abele.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1))
    executor.compile(*batch)
    assert len(eager) > 20
    assert operator_sequences.difference(recorded(executor), eager) == ""


@pytest.mark.parametrize("name", networks.NETWORKS)
def test_an_inference_records_what_eager_runs(name):
    ours, theirs = networks.NETWORKS[name]().eval(), networks.NETWORKS[name]().eval()
    batch = ours.batch(2)
    with torch.no_grad():
        _, eager = operator_sequences.watched(lambda: theirs(*batch))
    executor = abele.inferenceModel(ours)
    executor.compile(*batch)
    assert operator_sequences.difference(recorded(executor), eager) == ""


def test_composite_operators_choose_as_in_eager():
    x, y = torch.randn(5, 5, 5), torch.randn(1, 5, 5)
    executor = abele.inferenceModel(Apply(torch.matmul))
    assert torch.equal(executor(x, y), torch.matmul(x, y))
    assert "aten.bmm" in recorded(executor)


def test_modules_made_in_forward():
    """torch.nn.Parameter stashes all modes for a moment."""

    def forward(x):
        layer, made = torch.nn.Linear(4, 4), torch.rand(4)
        torch.nn.init.constant_(layer.weight, 2.0)
        torch.nn.init.zeros_(layer.bias)
        return layer(x) + made * 0

    x, other = torch.randn(3, 4), torch.randn(3, 4)
    executor = abele.inferenceModel(Apply(forward))
    with torch.no_grad():
        assert torch.equal(executor(x), forward(x)) and torch.equal(executor(other), forward(other))
    assert recorded(executor).count("aten.uniform_") == 3


class Counting(python_dispatch.TorchDispatchMode):
    """A mode of the program's own."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Failing(python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise ValueError("not here")


def in_modes(x):
    with Counting() as counting:
        y = torch.nn.functional.linear(x, x) + 1
    with Counting():
        pass
    z = y * 2
    try:
        with Counting(), Failing():
            z + 1
    except ValueError:
        z = z - 1
    with python_dispatch._disable_current_modes():
        z = z * 3
    with Counting(), Counting() as inner:
        z = torch.matmul(z, x[None])
    assert [name.partition(".default")[0] for name in inner.names][-2:] == [
        "aten.bmm",
        "aten._unsafe_view",
    ] or inner.names
    assert len(counting.names) >= 2
    return z.cos()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_modes_of_the_program(mode):
    x, other = torch.randn(3, 3), torch.randn(3, 3)
    executor = abele.inferenceModel(Apply(in_modes))
    with mode():
        assert torch.equal(executor(x), in_modes(x)) and torch.equal(executor(other), in_modes(other))


def test_a_mode_around_the_call():
    x, other = torch.randn(3, 3), torch.randn(3, 3)
    executor = abele.inferenceModel(Apply(lambda x: torch.matmul(x, x[None]).cos()))
    with Counting():
        executor(x)
        with Counting():
            assert torch.equal(executor(other), torch.matmul(other, other[None]).cos())
    assert torch._C._len_torch_dispatch_stack() == 0


def test_an_error_of_forward_leaves_nothing_behind():
    def forward(x):
        with Counting():
            x.view(7)

    keys = str(torch._C._dispatch_tls_local_include_set())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="shape"):
            abele.inferenceModel(Apply(forward))(torch.ones(2))
        assert torch._C._len_torch_dispatch_stack() == 0
        assert str(torch._C._dispatch_tls_local_include_set()) == keys
    with Counting() as counting:
        torch.ones(2) + 1
    assert counting.names == ["aten.ones.default", "aten.add.Tensor"]


def test_operators_that_no_callback_is_told_of():
    def forward(x):
        with torch.profiler.record_function("part"), torch.autograd.profiler.record_function("other"):
            y = x * 2
        return torch.ops.aten.size.int(y, 0) * y

    x = torch.randn(3)
    assert torch.equal(abele.inferenceModel(Apply(forward))(x), forward(x))
    with torch.inference_mode():
        x = torch.randn(3)
        assert torch.equal(abele.inferenceModel(Apply(forward))(x), forward(x))


@pytest.mark.parametrize("grad", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_transforms_of_functions(grad):
    def forward(x):
        rows = torch.func.vmap(lambda row: torch.nn.functional.softmax(row @ x.t(), 0))(x)
        return rows, torch.func.grad(lambda y: torch.nn.functional.gelu(y).sum())(x)

    x, other = torch.randn(3, 3), torch.randn(3, 3)
    executor = abele.inferenceModel(Apply(forward))
    with grad():
        for given in (x, other):
            assert all(map(torch.equal, executor(given), forward(given)))


class Checkpointed(torch.nn.Module):
    """Its policy is a mode that is pushed in forward and again while backward runs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Linear(4, 4))
        self.last = torch.nn.Linear(4, 4)

    def forward(self, x):
        def contexts():
            return checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])

        y = checkpoint.checkpoint(self.layers, self.last(x), use_reentrant=False, context_fn=contexts)
        return poptorch.identity_loss(self.last(y).square().mean(), "none")


def test_modes_that_backward_pushes():
    ours, theirs = Checkpointed(), Checkpointed()
    executor = abele.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(3):
        x = torch.randn(3, 4)
        loss = executor(x)
        expected = theirs(x)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        assert torch.equal(loss.reshape(()), expected)
    assert all(map(torch.equal, ours.state_dict().values(), theirs.state_dict().values()))
