"""`abele verify`: a program does not change, and its models are compared with eager PyTorch."""

import sys

import pytest
from abele.cli import verification
from abele.executor import Executor

PROGRAM = """
import sys

import {package}
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x, target=None):
        {line}
        out = self.second(torch.relu(self.first(x)))
        return out if target is None else (out, torch.nn.functional.mse_loss(out, target))


if __name__ == "__main__":
    steps = int(sys.argv[1])
    net, options = Net(), {package}.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(2)
    step = {package}.trainingModel(net, options, torch.optim.AdamW(net.parameters()))
    for _ in range(steps):
        step(torch.randn(4, 4), target=torch.randn(4, 2))
    print("trained")
    predict = {package}.inferenceModel(net, {package}.Options().showCompilationProgressBar(False))
    predict(torch.randn(2, 4))
    print("predicted")
"""


@pytest.fixture
def verify(tmp_path, capsys):
    def run(*arguments, steps=3, line="pass", package="abele"):
        path = tmp_path / "train.py"
        path.write_text(PROGRAM.format(line=line, package=package))
        before = list(sys.path), list(sys.argv)
        status = verification.main([*arguments, str(path), str(steps)])
        assert (sys.path, sys.argv) == before and Executor._calls_watch is None
        return status, capsys.readouterr().out

    return run


def test_the_first_model_and_no_further(verify):
    status, said = verify()
    assert status == 0 and "Net, training\nequal, bit for bit: 2 batches, 4 micro-batches" in said
    assert "trained" not in said


def test_all_models_to_the_end(verify):
    status, said = verify("--models", "0", "--batches", "1", package="poptorch")
    assert status == 0 and said.count("equal, bit for bit: 1 batch") == 2
    assert "Net, inference" in said and "predicted" in said


def test_fewer_calls_than_batches(verify):
    status, said = verify("--models", "0", "--batches", "5", steps=3)
    assert status == 0 and "equal, bit for bit: 3 batches" in said and "Net, inference" in said


def test_what_differs(verify):
    status, said = verify(line="self.calls += 1; x = x * self.calls", package="poptorch")
    assert status == 1 and "Net, training\n" in said and "differ" in said and "train.py:" in said


def test_programs_that_train_a_module_again(tmp_path, capsys):
    program = tmp_path / "again.py"
    program.write_text(
        "import abele, torch\n"
        "class Net(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return torch.nn.functional.mse_loss(super().forward(x), x[:, :2])\n"
        "net = Net(4, 2)\n"
        "def fit():\n"
        "    step = abele.trainingModel(net, None, torch.optim.SGD(net.parameters(), lr=0.1))\n"
        "    step(torch.randn(2, 4))\n"
        "fit()\n"
        "fit()\n"
    )
    assert verification.main(["--models", "0", str(program)]) == 0
    assert capsys.readouterr().out.count("equal, bit for bit: 1 batch") == 2


def test_programs_that_call_nothing(verify, tmp_path, capsys):
    empty = tmp_path / "empty.py"
    empty.write_text("import sys\nsys.exit(3)\n")
    assert verification.main([str(empty)]) == 2
    assert "called no compiled model" in capsys.readouterr().out
    for arguments in ([str(tmp_path / "none.py")], ["--batches", "0", str(empty)]):
        with pytest.raises(SystemExit) as end:
            verification.main(arguments)
        assert end.value.code == 2
