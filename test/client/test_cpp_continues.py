"""Training programs go on in the other language: what Python saved in a C++ process without Python, and the other way
round; the same losses and weights, with the module and without."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import poptorch
import pytest
import torch
from abele._native import core
from test_guide import DOCS, program

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))
STEPS, ROWS = 3, 4


class Net(torch.nn.Module):
    """Has the parameters of the C++ program's module."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.decoder = torch.nn.Linear(8, 3)

    def forward(self, batch, scale):
        with poptorch.Block("encoder", ipu_id=0):
            hidden = torch.dropout(torch.relu(self.norm(self.encoder(batch["x"]))), 0.25, True)
        with poptorch.Block("decoder", ipu_id=1):
            out = self.decoder(hidden) * scale
            return out, poptorch.identity_loss(torch.nn.functional.mse_loss(out, batch["a_target"]), "none")


OPTIMIZERS = {
    "SGD": lambda parameters: poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: poptorch.optim.AdamW(parameters, lr=0.01),
    "Adam of torch": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "fused": lambda parameters: torch.optim.Adam(parameters, lr=0.01, fused=True),
    "groups": lambda parameters: poptorch.optim.RMSprop([{"params": [p], "lr": 0.01} for p in parameters], lr=0.02),
}


def options():
    result = poptorch.Options().randomSeed(3).setExecutionStrategy(poptorch.ShardedExecution())
    result.threadsPerDevice(1)
    return result


def cpp(*arguments):
    """Losses and sums of the tensors that the program prints."""
    command = [BUILD / "test" / "continue_training", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    sums = {name: float.fromhex(value) for name, value in map(str.split, lines[STEPS:])}
    return [float.fromhex(line) for line in lines[:STEPS]], sums


def python(model, state, call):
    torch.manual_seed(7)
    losses = [call(torch.randn(ROWS, 6), torch.randn(ROWS, 3))[1].item() for _ in range(STEPS)]
    model.copyWeightsToHost()
    return losses, {name: tensor.double().sum().item() for name, tensor in state().items()}


@pytest.mark.parametrize("how", ["alone", "module"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_goes_on_in_cpp(name, how, tmp_path):
    torch.manual_seed(1)
    net = Net()
    optimizer = OPTIMIZERS[name](net.parameters())
    model = poptorch.trainingModel(net, options(), optimizer)

    def call(x, target):
        return model({"x": x, "a_target": target}, 2.0)

    call(torch.randn(ROWS, 6), torch.randn(ROWS, 3))
    file = tmp_path / "program.poptorch"
    model.save(file)
    assert json.loads(core().ProgramFile.read(os.fsencode(file)).options) == {
        "setExecutionStrategy": "ShardedExecution(AutoStage.SameAsIpu)",
        "outputMode": ["OutputMode.Final", 1],
        "randomSeed": 3,
        "threadsPerDevice": 1,
    }
    found = cpp(how, file, STEPS, ROWS, 0.5)
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    model.setOptimizer(optimizer)
    assert found == python(model, net.state_dict, call)


def test_a_program_without_its_weights_goes_on_with_those_of_the_module(tmp_path):
    net = Net()
    model = poptorch.trainingModel(net, options(), torch.optim.SGD(net.parameters(), lr=0.1))
    file = tmp_path / "program.poptorch"
    batch = {"x": torch.ones(ROWS, 6), "a_target": torch.ones(ROWS, 3)}
    model.compileAndExport(file, batch, 2.0, export_model=False)
    losses, _ = cpp("module", file, STEPS, ROWS)
    assert all(loss == loss for loss in losses)
    command = [BUILD / "test" / "continue_training", "alone", file, "1", str(ROWS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "E0712" in done.stderr and "pass the module" in done.stderr


@pytest.mark.parametrize("how", ["alone", "module"])
def test_training_of_cpp_goes_on_in_python(how, tmp_path):
    file = tmp_path / "program.poptorch"
    expected = cpp("save", file, STEPS, ROWS, 0.02)

    state = torch.get_rng_state()
    loaded = poptorch.load(file)
    assert torch.equal(torch.get_rng_state(), state)  # the program's seed is the devices' alone
    assert (loaded.options.random_seed, loaded.options.threads_per_device) == (3, 1)
    assert isinstance(loaded.model, torch.nn.Module) and set(loaded.model.state_dict()) == set(Net().state_dict())
    if how == "module":
        net = Net()
        net.load_state_dict(loaded.model.state_dict())
        model = poptorch.trainingModel(net, options(), poptorch.optim.AdamW(net.parameters(), lr=0.01))
        model.loadExecutable(file)
        state = loaded._executable.session
        model._executable.session.setOptimizerState(state.optimizerState())
        model._executable.session.setRngState(state.rngState())
    else:
        model, net = loaded, loaded.model

    def call(x, target):
        return model({"x": x, "target": target}, 0.5)

    model.setOptimizer(poptorch.optim.AdamW(net.parameters(), lr=0.02))
    assert python(model, net.state_dict, call) == expected

    x, target = torch.ones(ROWS, 6), torch.ones(ROWS, 3)
    for wrong in (
        lambda: model({"x": x, "target": target}, 0.25),
        lambda: model({"x": x}, 0.5),
        lambda: model({"x": x, "target": target[:2]}, 0.5),
        lambda: model([x, target], 0.5),
    ):
        with pytest.raises(poptorch.Error, match="E0704"):
            wrong()
    again = tmp_path / "again.poptorch"
    model.save(again)
    if how == "module":
        return
    model.destroy()
    with pytest.raises(poptorch.Error, match="E0705 .*no forward"):
        model({"x": x, "target": target}, 0.5)


def test_files_of_other_versions_are_refused(tmp_path, monkeypatch):
    from abele import _files

    file = tmp_path / "program.poptorch"
    cpp("save", file, STEPS, ROWS, 0.02)
    monkeypatch.setattr(_files, "version_of", lambda: "abele 99")
    with pytest.raises(poptorch.Error, match="E0712"):
        poptorch.load(file)


def test_damaged_files_are_refused(tmp_path):
    file = tmp_path / "damaged.poptorch"
    file.write_bytes(b"no program")
    command = [BUILD / "test" / "continue_training", "alone", file, "1", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "E0712" in done.stderr or "E0501" in done.stderr


def test_cpp_blocks_of_the_documents_run(tmp_path, monkeypatch, capsys):
    done = subprocess.run([BUILD / "test" / "cpp_blocks"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The page with both languages: they print the same lines.
    monkeypatch.chdir(tmp_path)
    page = DOCS / "guide" / "side_by_side.md"
    module = types.ModuleType("side_by_side")  # can be imported, so that its classes can be pickled
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(program(page), page, "exec"), vars(module))
    of_python, of_cpp = (re.findall(r"^\d\d .+: \S+$", text, re.M) for text in (capsys.readouterr().out, done.stdout))
    assert of_cpp == of_python and len(of_python) >= 20
