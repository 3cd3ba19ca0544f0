"""Saved programs of blocks over several devices: another process continues with eager's bits. On another machine they
are compiled again or refused."""

import os
import pathlib
import subprocess
import sys

import abele
import pytest
import torch
from against_eager import SEED, eager
from several_devices import STEPS, devices_of, make, options_of, require_bits

pytestmark = pytest.mark.usefixtures("one_thread")

SCRIPT = pathlib.Path(__file__).parent / "saved_division.py"
# ATen's kernels of another processor.
OTHER = {"ATEN_CPU_CAPABILITY": "default"}


def go_on(folder, *how, **environment):
    """Continues in another process. Returns: its results."""
    child = subprocess.run(
        [sys.executable, SCRIPT, folder, *how], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return torch.load(folder / "seen.pt")


def batches_of(model, number):
    torch.manual_seed(1)
    return [model.batch(4) for _ in range(number)]


def save(folder, network, stages, opts, **saving):
    """Trains, and saves in between. Returns: the executor and the batches of the steps after that."""
    model, _ = make(network, stages)
    executor = abele.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.01))
    batches = batches_of(model, 2 * STEPS)
    for batch in batches[:STEPS]:
        executor(*batch)
    executor.save(folder / "net.poptorch", **saving)
    torch.save(batches[STEPS:], folder / "batches.pt")
    return executor, batches[STEPS:]


@pytest.fixture(scope="module")
def mlp(tmp_path_factory):
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("mlp")
    save(folder, "Mlp", 1, options_of(2, accumulation=2))
    return folder


@pytest.mark.parametrize(
    ("network", "stages", "devices", "separate"),
    [("Mlp", 1, 2, False), ("Gpt", 2, 2, False), ("Bert", 1, 3, True), ("ConvNet", ([0, 1], [2, 3, 4]), 1, True)],
)
def test_another_process_goes_on(tmp_path, network, stages, devices, separate):
    executor, batches = save(tmp_path, network, stages, options_of(devices, accumulation=2).separateMemory(separate))
    ours = [executor(*batch) for batch in batches]
    seen = go_on(tmp_path, "load")
    assert seen["was compiled"]
    assert seen["devices"] == devices_of(executor) and len(seen["devices"]) > 1
    _, reference = make(network, stages)
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    all_batches = batches_of(reference, 2 * STEPS)
    torch.manual_seed(SEED)
    for step, batch in enumerate(all_batches):
        expected = eager(reference, optimizer, batch, 2, 2)
        for found in (ours, seen["results"]) if step >= STEPS else ():
            for name, a, b in zip(("output", "loss"), found[step - STEPS], expected, strict=True):
                require_bits(a.reshape(b.shape), b, f"{name} of step {step}")
    for name, tensor in reference.state_dict().items():
        require_bits(seen["weights"][name], tensor, name)
    executor.destroy()


@pytest.mark.parametrize(
    ("how", "environment"),
    [("load", OTHER), ("threads", {}), ("load", {"ABELE_SHARD_TRIALS": "fail"})],
    ids=["processor", "threads", "trials"],
)
def test_where_trials_may_differ_the_module_is_compiled_again(mlp, how, environment):
    seen = go_on(mlp, how, **environment)
    assert not seen["was compiled"]
    assert len(seen["results"]) == STEPS


def test_weights_and_state_go_on_where_it_is_compiled_again(mlp):
    """Without divided operators the bits are those of this processor."""
    expected, found = go_on(mlp, "load"), go_on(mlp, "load", ABELE_SHARD_TRIALS="fail")
    for ours, theirs in zip(found["results"], expected["results"], strict=True):
        for a, b in zip(ours, theirs, strict=True):
            require_bits(a, b, "result")
    for name, tensor in expected["weights"].items():
        require_bits(found["weights"][name], tensor, name)


@pytest.mark.parametrize(
    ("how", "environment"), [("alone", OTHER), ("alone threads", {})], ids=["processor", "threads"]
)
def test_a_program_without_its_module_is_refused(mlp, how, environment):
    error = go_on(mlp, *how.split(), **environment)["refused"]
    assert "E0712" in error
    found, expected = (next(line for line in error.splitlines() if word in line) for word in ("found", "expected"))
    if environment:
        assert "DEFAULT" in found and "DEFAULT" not in expected
    else:
        assert "2 threads a device" in found and "1 thread a device" in expected
    assert "compile the model here" in error


def test_a_program_without_its_module_goes_on(mlp):
    seen = go_on(mlp, "alone")
    assert seen["refused"] == ""


def test_inference_is_saved(tmp_path):
    model, reference = make("Gpt", 1)
    executor = abele.inferenceModel(model.eval(), options_of(2, iterations=2))
    batch = model.batch(4)
    executor(*batch)
    executor.save(tmp_path / "net.poptorch")
    torch.save([batch], tmp_path / "batches.pt")
    seen = go_on(tmp_path, "load")
    with torch.no_grad():
        expected = [reference.eval()(*rows)[0] for rows in zip(*(t.split(2) for t in batch), strict=True)]
    assert seen["was compiled"] and len(seen["devices"]) == 2
    require_bits(seen["results"][0][0], torch.cat(expected), "output")
