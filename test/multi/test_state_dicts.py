"""state_dict() of models and optimizers whose stages lie in several processes: all of it, newest, or an error."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, poprun

SCRIPT = HERE / "state_dicts.py"


def run(folder, processes, how):
    """What each process has seen."""
    folder.mkdir()
    done = poprun("--num-instances", processes, sys.executable, SCRIPT, folder, how)
    assert done.returncode == 0, done.stdout + done.stderr
    return [torch.load(folder / f"{how}-{process}.pt") for process in range(processes)]


def require_equal(found, expected, what):
    assert found.keys() == expected.keys(), what
    assert [name for name, value in expected.items() if not torch.equal(found[name], value)] == [], what


@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize("how", ["whole", "whole-ours"])
def test_every_process_gets_all_of_it_and_the_newest(tmp_path, how, processes):
    (alone,) = run(tmp_path / "alone", 1, how)
    assert len(alone["optimizer"]) > 20
    for process, seen in enumerate(run(tmp_path / "together", processes, how)):
        assert seen.keys() == alone.keys()
        for what, tensors in alone.items():
            require_equal(seen[what], tensors, (process, what))


@pytest.mark.parametrize("how", ["meta", "meta-ours"])
def test_models_that_no_process_has_whole_refuse_or_stream_it(tmp_path, how):
    (alone,) = run(tmp_path / "alone", 1, how)
    for process, seen in enumerate(run(tmp_path / "together", 2, how)):
        errors = seen["errors"]
        assert "E0705" in errors.pop("before"), (process, errors)
        for what, text in errors.items():
            if what == "pickle of the optimizer" and how == "meta":
                continue  # torch's own, which asks nobody
            assert "E0711" in text and "abele.save_checkpoint" in text, (process, what, text)
        for what in ("weights", "state"):
            require_equal(seen[what], alone[what], (process, what))
        if how == "meta":
            assert 0 < seen["held"] < 10, "the state of this process's stages alone"
