"""A run continues from a checkpoint with other numbers of processes, stages or devices of a stage. Its bits are those
of a run that never stopped.
"""

import pathlib
import subprocess
import sys

import abele
import pytest
import torch
from support import warm

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, LIMIT_S, poprun

SCRIPT = HERE / "run_checkpoints.py"
STOP, LAST = 3, 6


def run(folder, processes, *numbers):
    folder.mkdir(exist_ok=True)
    if processes == 1:
        path = "import sys; sys.path[:0] = " + repr(sys.path)
        program = f"{path}; sys.argv = {['', str(folder), *map(str, numbers)]!r}; " + "import runpy; "
        command = [*warm.python(), "-c", program + f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"]
        done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT_S)
    else:
        done = poprun("--num-instances", processes, sys.executable, SCRIPT, folder, *numbers)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"losses-{numbers[2]}-{process}.pt") for process in range(processes)]


def state_at(folder, step):
    tensors = abele.load_tensors(folder / f"step-{step:010}.safetensors")
    return {name: value for name, value in tensors.items() if name.startswith(("model/", "optimizer/", "random/"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, 1, 4, 1, LAST)[0], state_at(folder, LAST)


# Processes, devices, and how many of them share a stage: before the stop, and after it.
RUNS = {
    "one-two": ((1, 4, 1), (2, 4, 1)),
    "two-one": ((2, 4, 1), (1, 4, 1)),
    "four-stages-two": ((1, 4, 1), (1, 2, 1)),
    "two-stages-two-processes": ((1, 2, 1), (2, 4, 1)),
    "divided-whole": ((1, 4, 2), (1, 2, 1)),
    "divided-by-three": ((1, 4, 2), (1, 6, 3)),
    "divided-by-four": ((1, 4, 2), (1, 4, 4)),
    "divided-two-processes": ((1, 4, 2), (2, 4, 2)),
    "divided-by-two-processes": ((1, 4, 2), (2, 2, 2)),
    "two-processes-divide-by-four": ((2, 2, 2), (1, 4, 4)),
}


@pytest.mark.parametrize(("before", "after"), RUNS.values(), ids=RUNS)
def test_it_goes_on(tmp_path, whole, before, after):
    losses, state = whole
    run(tmp_path, *before, STOP)
    for found in run(tmp_path, *after, LAST):
        assert found.keys() == set(range(STOP, LAST))
        assert all(torch.equal(losses[step], loss) for step, loss in found.items())
    found = state_at(tmp_path, LAST)
    assert found.keys() == state.keys()
    assert [name for name, value in state.items() if not torch.equal(found[name], value)] == []


def test_processes_stop_together(tmp_path, whole):
    first, second = run(tmp_path, 2, 4, 1, LAST, STOP)
    assert first.keys() == second.keys() == set(range(STOP))
    (path,) = tmp_path.glob("*.safetensors")
    assert path.name == f"step-{STOP:010}.safetensors"
    assert all(torch.equal(whole[0][step], loss) for step, loss in first.items())
