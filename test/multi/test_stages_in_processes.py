"""One replica whose stages lie in several processes: the bits of one process, in all of them."""

import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, poprun, program
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


def _failing(name):
    """What each process says of it."""
    done = poprun("--num-instances=2", sys.executable, HERE / "failing_stages.py", name)
    lines = [line.split(": ", 1) for line in done.stdout.splitlines() if line[:3] in ("0: ", "1: ")]
    return [[text for rank, text in lines if rank == str(process)] for process in range(2)], done


def test_a_process_that_ends_is_an_error_in_the_other():
    (first, _), done = _failing("ends")
    assert len(first) == 2, done.stdout + done.stderr
    assert all(text.startswith("in time E0606") for text in first), first


def test_a_stage_that_fails_is_an_error_everywhere():
    (own, other), done = _failing("step_fails")
    assert "E0601" in own[0] and "fwd/0" in own[0], done.stdout + done.stderr
    assert other[0].startswith("in time E0606") and "process 0" in other[0]


def test_programs_that_differ_are_refused():
    seen, done = _failing("other_program")
    assert all("E0713" in texts[0] for texts in seen), done.stdout + done.stderr


def test_another_number_of_processes_is_refused():
    seen, done = _failing("other_number_of_processes")
    assert all("E0402" in texts[0] and "start 1 processes" in texts[0] for texts in seen), done.stdout + done.stderr


def test_poprun_says_how_many_devices_each_process_has():
    text = "import poptorch; print('devices', poptorch.Options().Distributed.devices_per_process)"
    done = poprun("--num-instances=2", "--num-replicas=1", "--ipus-per-replica=4", *program(text))
    assert done.stdout.count("devices 2") == 2, done.stdout + done.stderr
    done = poprun("--num-instances=2", "--num-replicas=2", *program(text))
    assert done.stdout.count("devices 0") == 2
    done = poprun("--num-instances=2", "--num-replicas=1", "--ipus-per-replica=3", "true")
    assert done.returncode == 2 and "3 devices cannot be shared by 2 instances" in done.stderr
