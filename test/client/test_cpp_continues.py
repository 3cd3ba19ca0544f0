"""A training program that Python saved goes on in a C++ process without Python: the same losses and weights."""

import os
import subprocess
from pathlib import Path

import poptorch
import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))
STEPS, ROWS = 3, 4


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.decoder = torch.nn.Linear(8, 3)

    def forward(self, x, target):
        with poptorch.Block("encoder", ipu_id=0):
            hidden = torch.dropout(torch.relu(self.norm(self.encoder(x))), 0.25, True)
        with poptorch.Block("decoder", ipu_id=1):
            out = self.decoder(hidden)
            return out, poptorch.identity_loss(torch.nn.functional.mse_loss(out, target), "none")


OPTIMIZERS = {
    "SGD": lambda parameters: poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: poptorch.optim.AdamW(parameters, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_in_cpp(name, tmp_path):
    torch.manual_seed(1)
    options = poptorch.Options().randomSeed(3)
    options.setExecutionStrategy(poptorch.ShardedExecution())
    options._Popart.set("abele.threadsPerDevice", 1)
    net = Net()
    model = poptorch.trainingModel(net, options, OPTIMIZERS[name](net.parameters()))
    model(torch.randn(ROWS, 6), torch.randn(ROWS, 3))
    file = tmp_path / "program.poptorch"
    model.save(file)

    command = [BUILD / "test" / "continue_training", file, str(STEPS), str(ROWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()

    torch.manual_seed(7)
    losses = [model(torch.randn(ROWS, 6), torch.randn(ROWS, 3))[1].item() for _ in range(STEPS)]
    assert [float.fromhex(line) for line in lines[:STEPS]] == losses
    model.copyWeightsToHost()
    found = {name: float.fromhex(value) for name, value in map(str.split, lines[STEPS:])}
    expected = {name: tensor.double().sum().item() for name, tensor in net.state_dict().items()}
    assert found == expected


def test_damaged_files_are_refused(tmp_path):
    file = tmp_path / "damaged.poptorch"
    file.write_bytes(b"no program")
    command = [BUILD / "test" / "continue_training", file, "1", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "E0712" in done.stderr or "E0501" in done.stderr


def test_cpp_blocks_of_the_documents_run(tmp_path):
    done = subprocess.run([BUILD / "test" / "cpp_blocks"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
