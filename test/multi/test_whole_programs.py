"""Programs with everything around a training: loaders, cache, checkpoints, other launchers."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, LIMIT_S, poprun


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("program")
    done = poprun(
        *("--num-instances=2", "--num-replicas=2", f"--executable-cache-path={folder}/cache"),
        *(sys.executable, HERE / "program.py", folder),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"result-{p}.pt") for p in range(2)] + [list((folder / "cache").glob("*.abx"))]


def _equal(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_the_processes_share_the_data_and_the_weights(results):
    first, second, _ = results
    rows = torch.cat([*first["inputs"], *second["inputs"]])
    assert rows.shape == (48, 16) and len(rows.unique(dim=0)) == 48
    assert _equal(first["continued"], second["continued"])


def test_one_process_compiles(results):
    first, second, files = results
    assert len(files) == 1
    assert sorted([first["from_cache"], second["from_cache"]]) == [False, True]


def test_checkpoints_of_one_process_and_programs_of_each(results):
    for result in results[:2]:
        assert _equal(result["loaded"], result["checkpoint"])
        assert _equal(result["continued_from_file"], result["continued"])
        assert not _equal(result["continued"], result["checkpoint"])


def test_torchrun_and_a_group_of_the_program_itself(tmp_path):
    text = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
import poptorch, torch, torch.distributed as dist
from cases import CASES
dist.init_process_group("gloo")
case = CASES["sgd"]
opts = case.options(1)
opts.Distributed.setEnvVarNames("WORLD_SIZE", "RANK")
rank = opts.Distributed.processId
weights = case.train(opts, slice(rank, rank + 1), 2)["weights"]
torch.save(weights, sys.argv[1] + f"/{{rank}}.pt")
mine = weights["first.weight"].detach()
total = mine.clone()
dist.all_reduce(total)
assert torch.equal(total, 2 * mine)
dist.destroy_process_group()
"""
    (tmp_path / "train.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    from cases import CASES

    alone = CASES["sgd"].alone(2)["weights"]
    for rank in range(2):
        assert _equal(torch.load(tmp_path / f"{rank}.pt"), alone)
