"""E0605: off-chip tensors whose file cannot be made, or does not fit."""

import subprocess
import sys
import textwrap

import abele
import poptorch
import pytest
import torch


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        with poptorch.Block("0"):
            y = self.linear(x)
        with poptorch.Block("1"):
            return poptorch.identity_loss(y, reduction="mean")


def phased(folder):
    opts = poptorch.Options().setExecutionStrategy(poptorch.SerialPhasedExecution("0", "1"))
    return opts.offChipMemoryLimit(0).offChipFolder(folder)


def test_no_folder(tmp_path):
    folder = tmp_path / "missing"
    model = Weighted()
    before = model.linear.weight.detach().clone()
    executor = poptorch.trainingModel(model, phased(folder))
    with pytest.raises(poptorch.Error, match="E0605 off-chip-storage") as raised:
        executor(torch.ones(2, 64))
    text = str(raised.value)
    assert str(folder) in text and "No such file or directory" in text and "offChipFolder" in text
    assert isinstance(raised.value, poptorch.UnrecoverableError)
    assert torch.equal(model.linear.weight, before)
    folder.mkdir()
    assert executor(torch.ones(2, 64)).isfinite()  # compiled now
    with pytest.raises(poptorch.UnrecoverableError, match="E0605"):
        abele.offload(model, tmp_path / "nowhere")
    assert executor(torch.ones(2, 64)).isfinite()


FULL = """
    import resource
    import sys

    import poptorch
    import torch

    sys.path.insert(0, sys.argv[1])
    from test_E0605_off_chip_storage import Weighted, phased

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # no file can be larger
    try:
        poptorch.trainingModel(Weighted(), phased(sys.argv[2]))(torch.ones(2, 64))
    except poptorch.Error as error:
        print(error)
"""


def test_no_room(tmp_path):
    script = textwrap.dedent(FULL)
    folder = __file__.rpartition("/")[0]
    run = subprocess.run(
        [sys.executable, "-c", script, folder, str(tmp_path)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "E0605 off-chip-storage" in run.stdout and "does not fit" in run.stdout, run.stdout + run.stderr
    assert str(tmp_path) in run.stdout and "offChipMemoryLimit" in run.stdout
    assert list(tmp_path.iterdir()) == []
