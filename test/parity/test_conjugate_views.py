"""Conjugated and negated views: one memory with what they look at, also where either is written, and products that
eager PyTorch computes with conjugates."""

import abele
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


class Complex(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6, dtype=torch.complex64))
        self.register_buffer("state", torch.randn(6, 6, dtype=torch.complex64))
        self.work = work

    def forward(self, x):
        result = self.work(self, x @ self.weight)
        result = torch.view_as_real(result.resolve_conj()) if result.is_complex() else result
        return abele.identity_loss(result.square().sum(), "none")


def writes_source(model, z):
    seen = z.conj()
    z.mul_(model.weight)
    return seen * 2 + z


def writes_view(model, z):
    z = z * 1
    z.conj()[1].mul_(2j)
    z.t().conj().select(0, 2).add_(1 + 1j)
    return z


def writes_negative(model, z):
    z = z * 1
    z.conj().imag.add_(0.5)
    seen = z.conj().imag
    z.add_(1j)
    return z * seen


def writes_buffer(model, z):
    with torch.no_grad():
        model.state.conj().add_(z.detach())
    return z * model.state


def multiplies(model, z):
    return z.conj() @ model.weight.mH + torch.addmm(z, z.mH, z.conj())


def dots(model, z):
    return torch.dot(z[0].conj(), z[1]) * torch.vdot(z[1], z[2].conj()) * z / 1000


def batches(model, z):
    z = torch.stack([z, z * 2])
    return torch.baddbmm(z, z.mH, z.conj())


def solves(model, z):
    upper = z.triu() + 4 * torch.eye(6)
    return torch.linalg.solve_triangular(upper.mH, z.conj(), upper=False)


def asks(model, z):
    return z * 2 if z.conj().is_conj() and not z.is_conj() else z


def scans(model, z):
    return z.conj().cumsum(0).clone(memory_format=torch.contiguous_format).conj().real.contiguous()


WORK = [writes_source, writes_view, writes_negative, writes_buffer, multiplies, dots, batches, solves, asks, scans]


@pytest.mark.parametrize("work", WORK, ids=lambda work: work.__name__)
def test_training(work):
    torch.manual_seed(0)
    model, twin = Complex(work), Complex(work)
    twin.load_state_dict(model.state_dict())
    options = abele.Options()
    options.Training.gradientAccumulation(2)
    executor = abele.trainingModel(model, options, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3))
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-3)
    for _ in range(3):
        x = torch.randn(12, 6, dtype=torch.complex64)
        optimizer.zero_grad()
        for part in x.split(6):
            loss = twin(part)
            (loss / 2).backward()
        optimizer.step()
        assert torch.equal(executor(x), loss.detach())
    for name, value in twin.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


class Predicts(nn.Module):
    def __init__(self, work):
        super().__init__()
        self.work = work

    def forward(self, z):
        return self.work(z)


def turns(z):
    return abele.for_loop(3, lambda a: [a.conj() * 2], [z.conj()])[0]


def results(z):
    return z.conj(), (z * 2).t().conj(), z


RESULTS = {"for_loop": turns, "results": results, "the argument": lambda z: z.conj().clone()}


@pytest.mark.parametrize("given", ["plain", "conjugated", "negated", "expanded"])
@pytest.mark.parametrize("work", RESULTS)
def test_inference(work, given):
    """Arguments and results that are views."""
    torch.manual_seed(0)
    make = {
        "plain": lambda: torch.randn(4, 4, dtype=torch.complex64),
        "conjugated": lambda: torch.randn(4, 4, dtype=torch.complex64).conj(),
        "negated": lambda: torch.randn(4, 4, dtype=torch.complex64).conj().imag,
        "expanded": lambda: torch.randn(1, 4, dtype=torch.complex64).expand(4, 4).conj(),
    }[given]
    executor = abele.inferenceModel(Predicts(RESULTS[work]))
    for _ in range(2):
        x = make()
        expected = RESULTS[work](x.clone()) if work != "for_loop" else x.conj()
        if work == "for_loop":
            for _ in range(3):
                expected = expected.conj() * 2
        actual = executor(x)
        if isinstance(expected, torch.Tensor):
            expected, actual = [expected], [actual]
        for one, other in zip(expected, actual, strict=True):
            assert torch.equal(one, other)


class Holds(nn.Module):
    def __init__(self, held):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.held = held

    def forward(self, x):
        result = torch.view_as_real(self.held[1:] @ x * self.scale)
        return abele.identity_loss(result.sum(), "none")


def test_constants():
    held = [torch.randn(4, 4, dtype=torch.complex64).conj()[:, 1:], torch.randn(4, 4, dtype=torch.complex64).mH.imag]
    for each in held:
        x = torch.randn(each.shape[1], 4, dtype=torch.complex64)
        model = Holds(each + 0j if each.is_neg() else each)
        assert torch.equal(abele.inferenceModel(model)(x), model(x))


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
def test_views_that_the_model_holds_are_refused(kind):
    """A parameter would be trained by the conjugate of its gradient."""
    model = Holds(kind(torch.randn(4, 4, dtype=torch.complex64).conj()))
    executor = abele.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(abele.Error, match="E0105.*held is a conjugated or negated view"):
        executor(torch.randn(4, 4, dtype=torch.complex64))


def looks(z):
    return torch.ops.conjugate_views.looks(z.conj())


def returns_view(z):
    return torch.ops.conjugate_views.returns_view(z)


@pytest.mark.parametrize("work", [looks, returns_view], ids=lambda work: work.__name__)
def test_operators_of_others_that_know_views_are_refused(work):
    library = torch.library.Library("conjugate_views", "FRAGMENT")
    library.define("looks(Tensor x) -> Tensor")
    library.impl("looks", lambda x: x * 2, "CPU")
    library.impl("looks", torch.library.fallthrough_kernel, "Conjugate")
    library.define("returns_view(Tensor x) -> Tensor")
    library.impl("returns_view", lambda x: (x * 2).conj(), "CPU")
    executor = abele.inferenceModel(Predicts(work))
    with pytest.raises(abele.Error, match="E0106.*conjugated or negated view"):
        executor(torch.randn(4, dtype=torch.complex64))
