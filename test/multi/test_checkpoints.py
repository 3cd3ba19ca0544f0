"""A run goes on from a checkpoint with another number of processes, or of stages: the bits of one that never stopped"""

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
    return [torch.load(folder / f"losses-{numbers[1]}-{process}.pt") for process in range(processes)]


def state_at(folder, step):
    tensors = abele.load_tensors(folder / f"step-{step:010}.safetensors")
    return {name: value for name, value in tensors.items() if name.startswith(("model/", "optimizer/", "random/"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return run(folder, 1, 4, LAST)[0], state_at(folder, LAST)


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 4), (2, 4)), ((2, 4), (1, 4)), ((1, 4), (1, 2)), ((1, 2), (2, 4))],
    ids=["one-two", "two-one", "four-stages-two", "two-stages-two-processes"],
)
def test_it_goes_on(tmp_path, whole, before, after):
    losses, state = whole
    run(tmp_path, before[0], before[1], STOP)
    for found in run(tmp_path, after[0], after[1], LAST):
        assert found.keys() == set(range(STOP, LAST))
        assert all(torch.equal(losses[step], loss) for step, loss in found.items())
    found = state_at(tmp_path, LAST)
    assert found.keys() == state.keys()
    assert [name for name, value in state.items() if not torch.equal(found[name], value)] == []


def test_processes_stop_together(tmp_path, whole):
    first, second = run(tmp_path, 2, 4, LAST, STOP)
    assert first.keys() == second.keys() == set(range(STOP))
    (path,) = tmp_path.glob("*.safetensors")
    assert path.name == f"step-{STOP:010}.safetensors"
    assert all(torch.equal(whole[0][step], loss) for step, loss in first.items())
