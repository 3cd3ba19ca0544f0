"""Inputs keep their strides: forward sees what eager PyTorch gives it, the slice of the user's tensor, so that the same
kernels run."""

import os
import subprocess
import sys
from pathlib import Path

import abele
import poptorch
import pytest
import torch

ROWS = 4
CASES = {
    "contiguous": lambda: torch.randn(ROWS, 6),
    "transposed": lambda: torch.randn(6, ROWS).t(),
    "time first": lambda: torch.randn(5, ROWS, 6).transpose(0, 1),
    "channels last": lambda: torch.randn(ROWS, 3, 5, 6).contiguous(memory_format=torch.channels_last),
    "expanded rows": lambda: torch.randn(6).expand(ROWS, 6),
    "expanded inside": lambda: torch.randn(ROWS, 1, 6).expand(ROWS, 5, 6),
    "every second column": lambda: torch.randn(ROWS, 12)[:, ::2],
    "overlapping windows": lambda: torch.randn(ROWS, 10).unfold(1, 6, 2),
    "integers": lambda: torch.arange(6 * ROWS).view(6, ROWS).t(),
}


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(6, 3)
        self.seen = []

    def forward(self, x):
        self.seen.append((x.stride(), x.is_contiguous()))
        y = self.layer(x.float())
        return y, x * 2, poptorch.identity_loss(y.square().sum(), "none")


def micro_batches(x, number):
    return [x[i * len(x) // number : (i + 1) * len(x) // number] for i in range(number)]


def options(number):
    return poptorch.Options().deviceIterations(number).outputMode(poptorch.OutputMode.All)


def compared(result, expected):
    return all(
        torch.equal(ours, torch.cat(parts))
        for ours, parts in zip(result[:2], list(zip(*expected, strict=True))[:2], strict=True)
    )


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_forward_sees_the_slice(case, number):
    torch.manual_seed(1)
    x, net = CASES[case](), Net()
    expected = [net(part) for part in micro_batches(x, number)]
    ours = Net()
    result = abele.inferenceModel(ours, options(number))(x)
    assert ours.seen[0] == net.seen[0]
    assert compared(result, expected)


@pytest.mark.parametrize("case", CASES)
def test_training_sees_the_slice(case):
    torch.manual_seed(1)
    x, net, ours = CASES[case](), Net(), Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    executor = abele.trainingModel(ours, options(2), torch.optim.SGD(ours.parameters(), lr=0.5))
    for _ in range(2):
        executor(x)
        for part in micro_batches(x, 2):
            optimizer.zero_grad()
            net(part)[2].backward()
            optimizer.step()
    assert ours.seen[0] == net.seen[0]
    assert all(map(torch.equal, ours.state_dict().values(), net.state_dict().values()))


class Rows(torch.nn.Module):
    def __init__(self, width, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.inner, self.norm, self.head = (
            torch.nn.Linear(width, width),
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 3),
        )
        self.table = torch.nn.Parameter(torch.randn(width, width) / width)

    def forward(self, x):
        h = torch.tanh(self.inner(x)) + x
        y = self.head(torch.nn.functional.gelu(self.norm(h)) @ self.table.exp())
        return y, h.flip(1), poptorch.identity_loss(torch.logsumexp(y, 1).square(), "sum")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("width", [9, 13])
@pytest.mark.parametrize("rows", [1, 3])
def test_small_micro_batches_of_a_wider_tensor(rows, width, seed):
    """Products of few rows depend on the distance between rows, and so does a gradient's sum over micro-batches."""
    accumulation, steps = 8, 3
    ours, net = Rows(width, seed), Rows(width, seed)
    opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(accumulation)
    executor = abele.trainingModel(ours, opts, torch.optim.SGD(ours.parameters(), lr=0.01))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(steps):
        x = torch.randn(rows * accumulation, 2 * width)[:, :width]
        result = executor(x)
        optimizer.zero_grad()
        expected = [net(part) for part in x.split(rows)]
        for *_, loss in expected:
            (loss / accumulation).backward()
        optimizer.step()
        assert compared(result, expected)
        assert torch.equal(result[2], torch.stack([loss for *_, loss in expected]))
    assert all(map(torch.equal, ours.state_dict().values(), net.state_dict().values()))
    executor.destroy()


class Operands(torch.nn.Module):
    """Views, transposed operands, operands without rows of the micro-batch, and results without rows."""

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.randn(1, width))
        self.table = torch.nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        h = torch.tanh(self.inner(x)) * self.scale + x[:, :1]
        mixed = (h.t() @ h) @ self.table.exp()
        return h - h.mean(0, keepdim=True) + mixed[:1], torch.softmax(h.flip(0), -1).sum(0), h.max()


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("width", [5, 16, 64])
def test_predictions_of_small_micro_batches(rows, width, strided):
    model = Operands(width).eval()
    x = torch.randn(6 * rows, 2 * width)[:, :width] if strided else torch.randn(6 * rows, width)
    found = abele.inferenceModel(model, options(6))(x)
    with torch.no_grad():
        first, second, third = zip(*(model(part) for part in x.split(rows)), strict=True)
    for ours, theirs in zip(found, (torch.cat(first), torch.cat(second), torch.stack(third)), strict=True):
        assert torch.equal(ours, theirs)


def test_other_strides_are_another_program():
    torch.manual_seed(1)
    net = Net()
    executor = abele.inferenceModel(net)
    inputs = [torch.randn(ROWS, 6), torch.randn(6, ROWS).t(), torch.randn(6).expand(ROWS, 6), torch.randn(ROWS, 6)]
    for x in inputs:
        assert compared(executor(x), [net(x)])
    compiled = [stride for stride, _ in net.seen]
    assert compiled[0] == (6, 1) and (1, ROWS) in compiled and (0, 1) in compiled


def test_poptorch_converts_to_the_strides_of_the_first_call(caplog):
    torch.manual_seed(1)
    net = Net()
    executor = poptorch.inferenceModel(net)
    x = torch.randn(6, ROWS).t()
    assert compared(executor(x), [net(x)])
    dense = torch.randn(ROWS, 6)
    as_compiled = torch.empty_strided(x.shape, x.stride()).copy_(dense)
    assert compared(executor(dense), [net(as_compiled)])
    assert "an input tensor is not contiguous" in caplog.text


def test_strides_that_repeat_elements_cannot_be_converted_to():
    executor = poptorch.inferenceModel(Net())
    executor(torch.randn(6).expand(ROWS, 6))
    with pytest.raises(poptorch.Error, match="E0704.*strides") as raised:
        executor(torch.randn(ROWS, 6))
    assert "contiguous()" in str(raised.value)
    executor(torch.randn(6).expand(ROWS, 6))


def test_lazy_conjugates_and_negatives():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x * 2

    x = torch.randn(4, 3, dtype=torch.complex64)
    for given in (x.conj(), x.conj().imag, x.t().conj()):
        assert torch.equal(abele.inferenceModel(Model())(given), given * 2)


@pytest.mark.parametrize("mkl", [{}, {"MKL_CBWR": "COMPATIBLE"}], ids=["MKL as it is", "MKL_CBWR"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_bits_of_every_choice_of_kernels(mkl, threads):
    """MKL chooses its kernels when a process starts."""
    environment = {**os.environ, **mkl, "OMP_NUM_THREADS": threads}
    if not mkl:
        environment.pop("MKL_CBWR", None)
    script = Path(__file__).with_name("strided_programs.py")
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
