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
