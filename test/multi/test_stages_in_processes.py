"""One replica whose stages lie in several processes: the bits of one process, in all of them."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, poprun
from stage_cases import CASES, STAGES

FEW = ["1f1b", "tied", "clipped"]


def _run(folder, processes, names):
    done = poprun("--num-instances", processes, sys.executable, HERE / "run_stage_cases.py", folder, *names)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: [torch.load(folder / f"{name}-{p}.pt") for p in range(processes)] for name in names}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("two"), 2, CASES)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    return _run(tmp_path_factory.mktemp("four"), 4, FEW)


def _tensors(outputs):
    return [tensor for call in outputs for tensor in (call if isinstance(call, (list, tuple)) else [call])]


def _require_equal(name, processes):
    alone = CASES[name].alone()
    for process, result in enumerate(processes):
        for ours, theirs in zip(_tensors(result["outputs"]), _tensors(alone["outputs"]), strict=True):
            assert torch.equal(ours, theirs), f"a result in process {process}"
        for part in ("weights", "state"):
            assert result[part].keys() == alone[part].keys()
            for key, value in alone[part].items():
                assert torch.equal(result[part][key], value), f"{part} {key} in process {process}"


@pytest.mark.parametrize("name", CASES)
def test_two_processes(of_two, name):
    _require_equal(name, of_two[name])


@pytest.mark.parametrize("name", FEW)
def test_four_processes(of_four, name):
    _require_equal(name, of_four[name])


def test_each_process_holds_the_memory_of_its_stages_alone(of_two):
    for process, result in enumerate(of_two["1f1b"]):
        held = [stage // (STAGES // 2) == process for stage in range(STAGES)]
        assert [mapped > 0 for mapped in result["report"]] == held
