"""Checkpoints of models that no process has whole: each writes and reads its own part.

A run goes on bit-equal, also with another number of processes or stages.
"""

import json
import pathlib
import subprocess
import sys

import abele
import pytest
import torch
from support import warm

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, LIMIT_S, poprun

SCRIPT = HERE / "run_part_checkpoints.py"
STOP, LAST = 3, 6


def run(folder, processes, *arguments):
    folder.mkdir(exist_ok=True)
    where = folder / "run"
    if processes == 1:
        path = "import sys; sys.path[:0] = " + repr(sys.path)
        program = f"{path}; sys.argv = {['', str(where), *map(str, arguments)]!r}; import runpy; "
        command = [*warm.python(), "-c", program + f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"]
        done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT_S)
    else:
        done = poprun("--num-instances", processes, sys.executable, SCRIPT, where, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"result-{arguments[0]}-{process}.pt") for process in range(processes)]


def require_equal(found, expected):
    assert found.keys() == expected.keys()
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One process that never stopped."""
    return run(tmp_path_factory.mktemp("whole"), 1, LAST, 4)[0]


@pytest.mark.parametrize(
    ("before", "after", "how"),
    [
        ((2, 4), (2, 4), []),
        ((2, 4), (4, 4), ["compiled"]),
        ((4, 4), (1, 4), []),
        ((1, 4), (2, 4), []),
        ((2, 2), (4, 4), []),
        ((4, 4), (2, 2), ["compiled"]),
    ],
    ids=["same", "two-four", "four-one", "one-two", "more-stages", "fewer-stages"],
)
def test_it_goes_on(tmp_path, whole, before, after, how):
    run(tmp_path, before[0], STOP, before[1])
    for found in run(tmp_path, after[0], LAST, after[1], *how):
        assert found["losses"].keys() == set(range(STOP, LAST))
        assert all(torch.equal(whole["losses"][step], loss) for step, loss in found["losses"].items())
        require_equal(found["whole"], whole["whole"])
        require_equal(found["state"], whole["state"])


def test_each_process_writes_what_it_has(tmp_path):
    first, second = run(tmp_path, 2, STOP, 4)
    folder = tmp_path / "run"
    assert first["path"] == second["path"] == str(folder / f"step-{STOP:010}.safetensors.index.json")
    index = json.loads(pathlib.Path(first["path"]).read_text())
    files = sorted(path.name for path in folder.iterdir())
    assert len(files) == 3 and set(index["weight_map"].values()) == set(files[:2])
    for process, file in enumerate(files[:2]):
        assert file.endswith(f"-{process + 1:05}-of-00002.safetensors")
        held = abele.load_tensors(folder / file)
        assert set(held) == {name for name, own in index["weight_map"].items() if own == file}
        for kind in ("model/", "optimizer/exp_avg/"):
            blocks = {int(name.split(".")[1]) for name in held if name.startswith(f"{kind}blocks")}
            assert blocks == {2 * process, 2 * process + 1}
        for name, value in first["whole"].items():
            if f"model/{name}" in held:
                assert torch.equal(held[f"model/{name}"], value)
        for name, value in first["state"].items():
            if f"optimizer/{name}" in held:
                assert torch.equal(held[f"optimizer/{name}"], value)
    names = {name for name in index["weight_map"] if name.startswith(("model/", "optimizer/"))}
    assert names == {*(f"model/{name}" for name in first["whole"]), *(f"optimizer/{name}" for name in first["state"])}


def test_the_last_ones_are_kept(tmp_path):
    """keep is 3: of five steps two are gone with their parts, and so is what an earlier writer left."""
    folder = tmp_path / "run"
    folder.mkdir()
    left = folder / "step-0000000042-17-00001-of-00002.safetensors"
    left.write_bytes(b"of a process that was killed")
    for last in (2, 4, 5):
        run(tmp_path, 2, last, 4, "twice")  # steps 1, 2; 3, 4; 4, 5
    steps = [f"step-{step:010}" for step in (3, 4, 5)]
    assert sorted(path.name for path in folder.glob("*.json")) == [f"{step}.safetensors.index.json" for step in steps]
    parts = sorted(path.name for path in folder.glob("*.safetensors"))
    assert [part[:15] for part in parts] == [step for step in steps for _ in range(2)]
    run(tmp_path, 1, 6, 4)
    assert (folder / "step-0000000006.safetensors").exists()
    assert len(list(folder.iterdir())) == 1 + 2 * 3


def test_a_process_that_cannot_write(tmp_path):
    first, second = run(tmp_path, 2, STOP, 4, "fails")
    assert "E0712" in first["error"] and "process 1 could not write its part" in first["error"]
    assert "E0712" in second["error"]
    assert not [name for name in first["files"] if name.endswith("99.safetensors.index.json")]
    run(tmp_path, 2, LAST, 4)  # goes on from step 3
    assert not list((tmp_path / "run").glob("*-0000000099-*"))


def damage(folder, name):
    (path,) = (path for path in folder.iterdir() if path.name.endswith(name))
    if name.startswith("-00002"):
        path.unlink()
        return
    bytes_ = bytearray(path.read_bytes())
    bytes_[-7] ^= 1
    path.write_bytes(bytes_)


@pytest.mark.parametrize("how", [[], ["compiled"]], ids=["before it is compiled", "behind a step"])
@pytest.mark.parametrize(
    ("name", "code"),
    [("-00001-of-00002.safetensors", "E0501"), ("-00002-of-00002.safetensors", "E0712"), (".json", "E0501")],
    ids=["damaged", "missing", "index"],
)
def test_damage(tmp_path, name, code, how):
    run(tmp_path, 2, STOP, 4)
    damage(tmp_path / "run", name)
    results = run(tmp_path, 2, LAST, 4, *how, "refused")
    assert any(code in result["error"] for result in results)
    assert all("E0" in result["error"] and result["unchanged"] for result in results)
