"""Programs of models whose stages lie in several processes, saved and loaded by as many or by others: the same bits."""

import json
import pathlib
import shutil
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, poprun

SCRIPT = HERE / "saved_programs.py"


def run(folder, processes, action, *how):
    """What each process has seen."""
    done = poprun("--num-instances", processes, sys.executable, SCRIPT, folder, action, *how)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{action}-{process}.pt") for process in range(processes)]


def require_equal(found, expected):
    for ours, theirs in zip(found["results"], expected["results"], strict=True):
        for own, other in zip(ours, theirs, strict=True):
            assert torch.equal(own, other)
    for part in ("weights", "state"):
        assert found[part].keys() == expected[part].keys()
        assert [name for name, value in expected[part].items() if not torch.equal(found[part][name], value)] == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """By how: one process that saves."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for how in ("ours", "torch", "inference"):
        (folder / how).mkdir()
        found[how] = run(folder / how, 1, "save", how)[0]
    return {"folder": folder, **found}


@pytest.mark.parametrize(
    ("where", "optimizer", "before", "after"),
    [
        ("host", "ours", 2, 2),
        ("host", "torch", 2, 4),
        ("host", "ours", 4, 1),
        ("meta", "torch", 2, 2),
        ("meta", "ours", 2, 4),
        ("meta", "torch", 4, 1),
    ],
)
def test_a_training_goes_on(tmp_path, whole, where, optimizer, before, after):
    for seen in run(tmp_path, before, "save", where, optimizer):
        require_equal(seen, whole[optimizer])
    for seen in run(tmp_path, after, "load", where, optimizer):
        require_equal(seen, whole[optimizer])
        assert seen["was compiled"] == (before == after)


@pytest.fixture(scope="module")
def divided(tmp_path_factory):
    """Two processes that share a stage: the folder of their file, and the results of each."""
    folder = tmp_path_factory.mktemp("divided")
    return folder, run(folder, 2, "save", "host", "divided")


def test_processes_that_share_a_stage(tmp_path, divided):
    folder, saved = divided
    expected = run(tmp_path, 1, "save", "divided")[0]
    by_two, by_one = (run(folder, processes, "load") for processes in (2, 1))
    assert [seen["was compiled"] for seen in by_two + by_one] == [True, True, False]
    for seen in saved + by_two + by_one:
        require_equal(seen, expected)


def test_trials_with_other_results_compile_the_shared_stage_again(monkeypatch, divided):
    folder, saved = divided
    monkeypatch.setenv("ABELE_SHARD_TRIALS", "fail")
    for seen in run(folder, 2, "load"):
        assert not seen["was compiled"]
        require_equal(seen, saved[0])


def test_trials_with_other_results_in_one_process(divided):
    folder, _ = divided
    for error in run(folder, 2, "refused", "differ"):
        assert "E0713" in error, error


@pytest.mark.parametrize("processes", [2, 4])
def test_a_file_of_one_process_goes_on_in_several(tmp_path, whole, processes):
    """Its options say nothing of processes: whoever loads it says how many devices each has."""
    path = whole["folder"] / "ours" / "net.poptorch"
    (tmp_path / "net.poptorch").write_bytes(path.read_bytes())
    for seen in run(tmp_path, processes, "load", "several"):
        require_equal(seen, whole["ours"])


@pytest.mark.parametrize("where", ["host", "meta"])
def test_inference(tmp_path, whole, where):
    run(tmp_path, 2, "save", where, "inference")
    for processes in (2, 1):
        for seen in run(tmp_path, processes, "load"):
            require_equal(seen, whole["inference"])


def test_one_file_where_each_process_has_the_whole_model(tmp_path):
    run(tmp_path, 2, "save", "host")
    assert [path.name for path in tmp_path.glob("net*")] == ["net.poptorch"]


def test_each_process_writes_its_part_beside_the_file(tmp_path):
    run(tmp_path, 2, "save", "meta", "again")
    names = sorted(path.name for path in tmp_path.glob("net*"))
    file, first, second, index = names
    assert file == "net.poptorch" and index.endswith(".safetensors.index.json")
    assert first.endswith("-00001-of-00002.safetensors") and second.endswith("-00002-of-00002.safetensors")
    file_of = json.loads((tmp_path / index).read_text())["weight_map"]
    assert file_of["model/layers.0.weight"] == file_of["model/unused.weight"] == first
    assert file_of["model/layers.3.bias"] == file_of["optimizer/exp_avg/layers.3.bias"] == second
    assert (tmp_path / file).stat().st_size < 200_000


def test_processes_that_name_different_files_are_refused(tmp_path):
    for seen in run(tmp_path, 2, "save", "host", "differ"):
        assert "E0712" in seen["refused"]["differ"] and "different files" in seen["refused"]["differ"]
    assert [path.name for path in tmp_path.glob("net*")] == ["net.poptorch"]


def test_a_process_that_cannot_write(tmp_path):
    first, second = run(tmp_path, 2, "save", "meta", "fails")
    assert "E0712" in first["refused"]["fails"] and "process 1 could not write its part" in first["refused"]["fails"]
    assert "E0712" in second["refused"]["fails"]
    assert not first["refused"]["is there"]
    require_equal(first, second)
    assert len(list(tmp_path.glob("net*"))) == 4, "the parts of the call that failed are gone"


def damage(folder, name, how):
    (path,) = folder.glob(f"net*{name}")
    if how == "missing":
        path.unlink()
        return
    bytes_ = bytearray(path.read_bytes())
    bytes_[-7] ^= 1
    path.write_bytes(bytes_)


@pytest.fixture(scope="module")
def in_parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    run(folder, 2, "save", "meta")
    return folder


@pytest.mark.parametrize(
    ("name", "how", "code", "processes"),
    [
        ("-00001-of-00002.safetensors", "damaged", "E0501", 2),
        ("-00002-of-00002.safetensors", "damaged", "E0501", 1),
        ("-00002-of-00002.safetensors", "missing", "E0712", 2),
        (".index.json", "damaged", "E0501", 1),
        (".index.json", "missing", "E0712", 1),
    ],
)
def test_damage(tmp_path, in_parts, name, how, code, processes):
    for path in in_parts.glob("net*"):
        shutil.copy(path, tmp_path)
    damage(tmp_path, name, how)
    found = run(tmp_path, processes, "refused")
    assert any(code in text for text in found), found
    assert all("E0" in text for text in found), found
