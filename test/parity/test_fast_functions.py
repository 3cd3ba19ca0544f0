"""Options.fusion("fast"): functions of our own and products, within a bound of eager PyTorch."""

import copy
import re

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn

FORWARD, BACKWARD = "abele_op::gelu", "abele_op::gelu_backward"


class Cell(nn.Module):
    def __init__(self, width=24, kind="none"):
        super().__init__()
        self.up, self.down, self.kind = nn.Linear(8, width), nn.Linear(width, 5), kind

    def forward(self, x, target=None):
        out = self.down(F.gelu(self.up(x), approximate=self.kind))
        return out if target is None else (out, F.cross_entropy(out, target))


@pytest.fixture(autouse=True)
def seeded():
    threads = torch.get_num_threads()
    torch.manual_seed(5)
    yield
    torch.set_num_threads(threads)


def executor_of(model, fusion, threads=1):
    torch.set_num_threads(threads)
    options = poptorch.Options().fusion(fusion)
    options.outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(2)
    options.threadsPerDevice(threads)
    return abele.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))


def train(model, fusion, rows, threads=1):
    """Three steps, compiled and eager: the largest difference of losses and weights, and the executable's text."""
    dtype = model.up.weight.dtype
    reference = copy.deepcopy(model)
    executor = executor_of(model, fusion, threads)
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    difference = 0.0
    for _ in range(3):
        x, target = torch.randn(2 * rows, 8, dtype=dtype), torch.randint(5, (2 * rows,))
        _, losses = executor(x, target)
        optimizer.zero_grad()
        expected = [reference(*part)[1] for part in zip(x.chunk(2), target.chunk(2), strict=True)]
        for loss in expected:
            (loss / 2).backward()
        optimizer.step()
        difference = max(difference, (losses.flatten() - torch.stack(expected).detach()).abs().max().item())
        state = executor.state_dict()
        for name, value in reference.state_dict().items():
            difference = max(difference, (state[name] - value).abs().max().item())
    text = executor._executable.session.executableText()
    executor.destroy()
    return difference, text


# Each function is within 6 u (1 + |x|) (kernels/gelu_loops.h), u = 2^-24; sums over 24 columns and 7 or 1500
# rows, three steps: far below what one rounding of a weight in bfloat16 is.
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [7, 1500])
def test_training_is_within_a_bound(rows, threads):
    difference, text = train(Cell(), "fast", rows, threads)
    assert difference < 2e-5
    assert FORWARD in text
    assert BACKWARD in text
    assert "aten::gelu" not in text
    assert "abele_op::addmm" in text
    assert "aten::mm" not in text and "aten::addmm" not in text


def test_bfloat16():
    difference, text = train(Cell().to(torch.bfloat16), "fast", 64)
    assert difference < 0.05
    assert FORWARD in text
    assert BACKWARD in text


@pytest.mark.parametrize("fusion", ["exact", "off"])
def test_other_levels_keep_eagers_bits(fusion):
    difference, text = train(Cell(), fusion, 7)
    assert difference == 0
    assert FORWARD not in text


@pytest.mark.parametrize("model", [Cell(kind="tanh"), Cell().double()])
def test_other_formulas_and_types_stay(model):
    _, text = train(model, "fast", 7)
    assert FORWARD not in text


def test_inference():
    model = Cell().eval()
    x = torch.randn(33, 8)
    executor = poptorch.inferenceModel(model, poptorch.Options().fusion("fast"))
    assert torch.allclose(executor(x), model(x), rtol=0, atol=1e-5)
    assert FORWARD in executor._executable.session.executableText()
    executor.destroy()


def test_gradients_are_right():
    """Against differences of the loss in double precision."""
    model = Cell(width=6)
    x, target = torch.randn(6, 8), torch.randint(5, (6,))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    executor = executor_of(model, "fast")
    executor(x, target)
    moved = executor.state_dict()
    executor.destroy()
    exact = copy.deepcopy(model).double()
    for name, value in start.items():
        for i in range(0, value.numel(), 5):
            losses = []
            for step in (1e-6, -1e-6):
                shifted = {key: tensor.double() for key, tensor in start.items()}
                shifted[name].view(-1)[i] += step
                losses.append(torch.func.functional_call(exact, shifted, (x.double(), target))[1])
            gradient = (value - moved[name]).flatten()[i].item() / 0.1
            assert abs((losses[0] - losses[1]).item() / 2e-6 - gradient) < 1e-5


class Normed(nn.Module):
    """Layer normalisation as eager PyTorch's modules spell it, with and without parts."""

    def __init__(self, width=24, **options):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, width), nn.LayerNorm(width, **options), nn.Linear(width, 5)

    def forward(self, x, target=None):
        out = self.down(self.norm(self.up(x)))
        return out if target is None else (out, F.cross_entropy(out, target))


# The gradients' sums are over 24 columns and 7 or 1500 rows; three steps.
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [7, 1500])
def test_layer_norm_is_within_a_bound(rows, threads):
    difference, text = train(Normed(), "fast", rows, threads)
    assert difference < 2e-5
    assert "abele_op::layer_norm(" in text
    assert "abele_op::layer_norm_backward(" in text
    assert "aten::native_layer_norm" not in text


@pytest.mark.parametrize("model", [Normed(elementwise_affine=False), Normed(bias=False), Normed().double()])
def test_other_layer_norms_stay(model):
    difference, text = train(model, "fast", 7)
    assert difference < 2e-5
    assert "abele_op::layer_norm" not in text


@pytest.mark.parametrize("fusion", ["exact", "off"])
def test_layer_norm_keeps_eagers_bits(fusion):
    assert train(Normed(), fusion, 7)[0] == 0


def test_layer_norm_of_inference_and_of_a_frozen_layer():
    model = Normed().eval()
    x = torch.randn(33, 8)
    executor = poptorch.inferenceModel(model, poptorch.Options().fusion("fast"))
    assert torch.allclose(executor(x), model(x), rtol=0, atol=1e-5)
    assert "abele_op::layer_norm(" in executor._executable.session.executableText()
    executor.destroy()
    frozen = Normed()
    frozen.norm.requires_grad_(False)
    assert train(frozen, "fast", 7)[0] < 2e-5


class Convolved(nn.Module):
    """Convolutions over few elements of many channels: with and without a bias, of one element, and in groups."""

    def __init__(self):
        super().__init__()
        self.up, self.deep = nn.Conv2d(1, 64, 3, (1, 2), 1), nn.Conv2d(64, 64, 3, 1, 1, bias=False)
        self.point, self.groups = nn.Conv2d(64, 16, 1), nn.Conv2d(16, 16, 3, 1, 1, groups=4)
        self.down = nn.Linear(16, 5)

    def forward(self, x, target=None):
        x = self.deep(F.relu(self.up(x.view(-1, 1, 2, 4))))
        out = self.down(self.groups(self.point(F.relu(x))).mean((2, 3)))
        return out if target is None else (out, F.cross_entropy(out, target))


# Sums of at most 576 terms, three steps.
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("fusion", "bound"), [("fast", 2e-5), ("exact", 0)])
def test_convolutions_are_within_a_bound(fusion, bound, threads):
    difference, text = train(Convolved(), fusion, 40, threads)
    assert difference <= bound
    for op in ("convolution(", "convolution_backward("):
        assert (f"abele_op::{op}" in text) == (fusion == "fast")
        assert f"aten::{op}" in text  # in groups


def test_a_zero_bubble_schedule_computes_gradients_of_weights_apart():
    model = Convolved()
    reference = copy.deepcopy(model)
    poptorch.BeginBlock(model.point, ipu_id=1)
    options = poptorch.Options().fusion("fast").threadsPerDevice(1)
    options.setExecutionStrategy(poptorch.PipelinedExecution().schedule("zero-bubble"))
    options.Training.gradientAccumulation(4)
    executor = abele.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    x, target = torch.randn(32, 8), torch.randint(5, (32,))
    executor(x, target)
    for part in zip(x.chunk(4), target.chunk(4), strict=True):
        (reference(*part)[1] / 4).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    state = executor.state_dict()
    for name, value in reference.state_dict().items():
        assert torch.allclose(state[name], value, rtol=0, atol=1e-5), name
    text = executor._executable.session.executableText()
    assert re.search(r"abele_op::convolution_backward\(.*\[true, false, false\]", text)  # in the second stage
    executor.destroy()
