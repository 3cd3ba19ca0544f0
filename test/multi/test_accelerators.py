"""Accelerators of several processes, simulated ones: the bits of one process on them, and no missing wait."""

import pathlib
import re
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "parity"))
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cases
import simulated
import stage_cases
from launch import HERE, OTHER_STARTS, poprun, require_equals_one, said, trained
from on_accelerator import judged

pytestmark = pytest.mark.own_process

# Rounding at random is the processor's alone.
STAGES = {name: case for name, case in stage_cases.CASES.items() if not case.rounded}
REPLICAS = [name for name, case in cases.CASES.items() if not case.rounded]
FEW = ["1f1b", "zero-bubble", "clipped", "dropout", "two-replicas-clipped", "spread-dropout", "inference"]
# Random numbers of a stage on the CPU are refused.
WITH_CPU = ["1f1b", "skip", "clipped", "two-replicas-tied", "spread"]


@pytest.fixture(autouse=True)
def _findings():
    yield from judged(delays=1)


def _run(processes, script, *arguments, device="simulated", **variables):
    return poprun(
        "--num-instances",
        processes,
        sys.executable,
        HERE / "on_simulated.py",
        script,
        *arguments,
        ABELE_DEVICE=device,
        **variables,
    )


def _trained(script, folder, processes, names, device="simulated", **variables):
    """What each of several processes left of each case."""
    launcher = [HERE / "on_simulated.py"]
    return trained(script, folder, processes, names, launcher, ABELE_DEVICE=device, **variables)


def _require_stages_equal(monkeypatch, name, processes, device):
    monkeypatch.setenv("ABELE_DEVICE", device)
    require_equals_one((STAGES | stage_cases.UNEVEN)[name], processes)


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return _trained("run_stage_cases.py", tmp_path_factory.mktemp("two"), 2, STAGES)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    return _trained("run_stage_cases.py", tmp_path_factory.mktemp("four"), 4, FEW)


@pytest.mark.parametrize("name", STAGES)
def test_stages_in_two_processes(monkeypatch, of_two, name):
    _require_stages_equal(monkeypatch, name, of_two[name], "simulated")


@pytest.mark.parametrize("name", FEW)
def test_stages_in_four_processes(monkeypatch, of_four, name):
    _require_stages_equal(monkeypatch, name, of_four[name], "simulated")


def test_processes_with_stages_of_several_replicas(monkeypatch, tmp_path):
    found = _trained("run_stage_cases.py", tmp_path, 3, ["three-processes"])
    _require_stages_equal(monkeypatch, "three-processes", found["three-processes"], "simulated")


def test_processes_that_share_an_accelerator(monkeypatch, tmp_path):
    for name, processes in _trained("run_stage_cases.py", tmp_path, 2, FEW, device="simulated:1").items():
        _require_stages_equal(monkeypatch, name, processes, "simulated:1")


def test_over_sockets(monkeypatch, tmp_path):
    found = _trained("run_stage_cases.py", tmp_path, 2, FEW, ABELE_HANDOVER="sockets")
    for name, processes in found.items():
        _require_stages_equal(monkeypatch, name, processes, "simulated")


# Both processes have one of each, or one has accelerators and the other the processor.
@pytest.mark.parametrize("device", ["simulated:2,cpu", "simulated:0,simulated:1,cpu,cpu"])
def test_stages_on_the_cpu_among_accelerators(monkeypatch, tmp_path, device):
    names = WITH_CPU if device.count("cpu") == 1 else [name for name in WITH_CPU if STAGES[name].replicas == 1]
    for name, processes in _trained("run_stage_cases.py", tmp_path, 2, names, device=device).items():
        _require_stages_equal(monkeypatch, name, processes, device)


@pytest.mark.parametrize(("processes", "names"), [(2, REPLICAS), (3, ["sgd", "accumulation"])])
def test_replicas(monkeypatch, tmp_path, processes, names):
    found = _trained("run_cases.py", tmp_path, processes, names)
    monkeypatch.setenv("ABELE_DEVICE", "simulated")
    for name, results in found.items():
        alone = cases.CASES[name].alone(processes)
        for process, result in enumerate(results):
            for part in ("weights", "state"):
                assert result[part].keys() == alone[part].keys()
                for key, value in alone[part].items():
                    assert torch.equal(result[part][key], value), f"{name}: {part} {key} of process {process}"


def _devices(done):
    """What each process says that it runs on, by process."""
    lines = [line.split(" runs on ") for line in (done.stdout + done.stderr).splitlines() if " runs on " in line]
    return {line[0].split()[-1]: line[1].strip() for line in lines}


@pytest.mark.parametrize(
    ("device", "taken"),
    [
        ("simulated", {"0": "simulated:0, simulated:1", "1": "simulated:2, simulated:3"}),
        ("simulated:3,simulated:1", {"0": "simulated:3, simulated:1", "1": "simulated:3, simulated:1"}),
        ("simulated:2", {"0": "simulated:2", "1": "simulated:2"}),
    ],
)
def test_each_process_takes_its_devices_of_the_list(tmp_path, device, taken):
    done = _run(2, "run_stage_cases.py", tmp_path, "1f1b", device=device, POPTORCH_LOG_LEVEL="INFO")
    assert _devices(done) == taken, done.stdout + done.stderr


def test_replicas_take_their_part_of_the_list(tmp_path):
    done = _run(2, "run_cases.py", tmp_path, "sgd", POPTORCH_LOG_LEVEL="INFO")
    assert _devices(done) == {"0": "simulated:0, simulated:1", "1": "simulated:2, simulated:3"}, done.stdout


def test_processes_whose_devices_are_laid_out_in_other_ways(tmp_path):
    done = _run(2, "run_cases.py", tmp_path, "sgd", device="simulated:0,simulated:0,simulated:0,cpu")
    assert done.returncode != 0
    assert "E0702" in done.stderr and "processes 0 and 1 have the same stages, on other devices" in done.stderr


def _failing(name, script="failing_stages.py", **variables):
    """What each process says of it."""
    done = _run(2, script, name, **variables)
    return said(done), done


def test_a_process_that_ends_is_an_error_in_the_other():
    (first, _), done = _failing("ends")
    assert len(first) == 2, done.stdout + done.stderr
    assert all("E0606" in text for text in first), first


def test_a_stage_that_fails_is_an_error_everywhere():
    (own, other), done = _failing("step_fails")
    assert "E0601" in own[0], done.stdout + done.stderr
    assert "E0606" in other[0] and "process 0" in other[0]


def test_replicas_stop_where_a_kernel_of_one_throws():
    (heard, weights), (own, other_weights) = _failing("step_fails", "failing.py")[0]
    assert "E0606" in heard and "process 1: its step failed" in heard
    assert "E0601" in own
    assert weights == other_weights and weights.startswith("survives True")


def test_replicas_with_weights_off_chip_are_refused():
    for (error,) in _failing("has_weights_off_chip", "failing.py")[0]:
        assert error.startswith("E0711") and "off-chip memory when replicas train in several processes" in error


@pytest.mark.parametrize(("name", "what"), OTHER_STARTS)
def test_steps_that_start_from_other_numbers_are_refused(name, what):
    seen, done = _failing(name)
    assert all("E0713" in texts[-1] and what in texts[-1] for texts in seen), done.stdout + done.stderr


def test_a_process_that_reads_weights_while_the_others_train():
    (reader, trainer), done = _failing("lone_reader")
    what = "process 1 runs a step while process 0 reads weights or state"
    assert what in reader[0] and what in trainer[0], done.stdout + done.stderr


# The program has a backend of torch.distributed for its devices.
BY_DEVICE = {"ABELE_HANDOVER": "device", "SIMULATED_GROUP": simulated.LINKS}


@pytest.mark.parametrize(("processes", "names"), [(2, [*FEW, "skip", "tied"]), (4, ["1f1b", "zero-bubble"])])
def test_from_device_to_device(monkeypatch, tmp_path, processes, names):
    for name, found in _trained("run_stage_cases.py", tmp_path, processes, names, **BY_DEVICE).items():
        _require_stages_equal(monkeypatch, name, found, "simulated")


def test_from_device_to_device_among_processors(monkeypatch, tmp_path):
    device = "simulated:0,simulated:1,simulated:2,cpu"
    found = _trained("run_stage_cases.py", tmp_path, 4, ["1f1b"], device=device, **BY_DEVICE)
    _require_stages_equal(monkeypatch, "1f1b", found["1f1b"], device)


def test_the_log_says_which_links_go_from_device_to_device(tmp_path):
    done = _run(2, "run_stage_cases.py", tmp_path, "1f1b", POPTORCH_LOG_LEVEL="INFO", **BY_DEVICE)
    text = done.stdout + done.stderr
    for link in ("from process 0 to process 1", "from process 1 to process 0"):
        assert text.count(f"a link {link} hands over from device to device, by simulated_links") == 2, text
    assert not re.search(r"link \d+ to process \d+ hands over", text), text


@pytest.mark.parametrize("group", ["", "gloo"])
def test_processes_without_a_backend_for_their_devices(tmp_path, group):
    done = _run(2, "run_stage_cases.py", tmp_path, "1f1b", ABELE_HANDOVER="device", SIMULATED_GROUP=group)
    assert done.returncode != 0
    assert "E0714" in done.stderr and "cannot reach the accelerators of other processes" in done.stderr
    assert ("no backend of simulated alone" if group else "called no init_process_group") in done.stderr


def test_a_device_that_waits_for_a_process_that_ended():
    (first, _), done = _failing("ends", ABELE_PEER_SILENCE="2", **BY_DEVICE)
    assert len(first) == 2, done.stdout + done.stderr
    assert all("E0606" in text for text in first), first


def test_a_stage_that_fails_while_devices_wait_for_it():
    (own, other), done = _failing("step_fails", **BY_DEVICE)
    assert "E0601" in own[0], done.stdout + done.stderr
    assert "E0606" in other[0] and "process 0" in other[0]
