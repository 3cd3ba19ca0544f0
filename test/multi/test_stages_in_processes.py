"""Replicas whose stages lie in several processes: the bits of one process, in all of them."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, OTHER_STARTS, poprun, program, require_equals_one, said, trained
from stage_cases import CASES, STAGES, UNEVEN

REPLICATED = [name for name in CASES if CASES[name].replicas > 1]
FEW = ["1f1b", "tied", "clipped", *REPLICATED]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return trained("run_stage_cases.py", tmp_path_factory.mktemp("two"), 2, CASES)


@pytest.fixture(scope="module")
def of_four(tmp_path_factory):
    return trained("run_stage_cases.py", tmp_path_factory.mktemp("four"), 4, FEW)


def _require_equal(name, processes):
    require_equals_one((CASES | UNEVEN)[name], processes)


@pytest.mark.parametrize("name", CASES)
def test_two_processes(of_two, name):
    _require_equal(name, of_two[name])


def test_the_same_over_sockets(tmp_path):
    names = ["1f1b", "tied", "skip"]
    found = trained("run_stage_cases.py", tmp_path, 2, names, ABELE_HANDOVER="sockets")
    for name in names:
        _require_equal(name, found[name])


@pytest.mark.parametrize("way", ["memory", "sockets"])
def test_the_log_says_how_processes_hand_over(tmp_path, way):
    script = HERE / "run_stage_cases.py"
    done = poprun(
        "--num-instances=2", sys.executable, script, tmp_path, "1f1b", ABELE_HANDOVER=way, POPTORCH_LOG_LEVEL="INFO"
    )
    text = {"memory": "hands over through shared memory", "sockets": "hands over through sockets"}
    assert text[way] in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize("name", FEW)
def test_four_processes(of_four, name):
    _require_equal(name, of_four[name])


@pytest.mark.parametrize(("name", "processes"), [("three-processes", 3), ("six-replicas", 4)])
def test_processes_with_stages_of_several_replicas(tmp_path, name, processes):
    _require_equal(name, trained("run_stage_cases.py", tmp_path, processes, [name])[name])


def test_each_process_holds_the_memory_of_its_stages_alone(of_two):
    for process, result in enumerate(of_two["1f1b"]):
        held = [stage // (STAGES // 2) == process for stage in range(STAGES)]
        assert [mapped > 0 for mapped in result["report"]] == held


def _failing(name):
    """What each process says of it."""
    done = poprun("--num-instances=2", sys.executable, HERE / "failing_stages.py", name)
    return said(done), done


def test_a_process_that_ends_is_an_error_in_the_other():
    (first, _), done = _failing("ends")
    assert len(first) == 2, done.stdout + done.stderr
    assert all(text.startswith("in time E0606") for text in first), first


def test_a_stage_that_fails_is_an_error_everywhere():
    (own, other), done = _failing("step_fails")
    assert "E0601" in own[0] and "fwd/0" in own[0], done.stdout + done.stderr
    assert other[0].startswith("in time E0606") and "process 0" in other[0]


def test_programs_that_differ_are_refused():
    for name in ("other_program", "other_trials"):
        seen, done = _failing(name)
        assert all("E0713" in texts[0] for texts in seen), done.stdout + done.stderr


def test_output_ranks_that_differ_are_refused():
    seen, done = _failing("other_output_rank")
    what = "process 1 sends results to other processes than process 0"
    assert all("E0713" in texts[0] and what in texts[0] for texts in seen), done.stdout + done.stderr
    assert all('outputRank("last")' in texts[0] and 'outputRank("first")' in texts[0] for texts in seen), seen


def test_a_process_without_results_hears_of_one_that_ends():
    (first, _), done = _failing("ends_where_the_other_has_no_results")
    assert first[0].startswith("in time E0606"), done.stdout + done.stderr


def test_another_number_of_processes_is_refused():
    seen, done = _failing("other_number_of_processes")
    assert all("E0402" in texts[0] and "start 1 processes" in texts[0] for texts in seen), done.stdout + done.stderr


@pytest.mark.parametrize(("name", "what"), OTHER_STARTS)
def test_steps_that_start_from_other_numbers_are_refused(name, what):
    seen, done = _failing(name)
    assert all("E0713" in texts[-1] and what in texts[-1] for texts in seen), done.stdout + done.stderr


def test_a_process_that_reads_weights_while_the_others_train():
    (reader, trainer), done = _failing("lone_reader")
    what = "process 1 runs a step while process 0 reads weights or state"
    assert reader[0].startswith("in time E0713") and what in reader[0], done.stdout + done.stderr
    assert trainer[0].startswith("in time") and what in trainer[0], trainer


def test_a_process_that_reads_weights_when_the_others_have_ended():
    (reader, _), done = _failing("lone_reader_at_the_end")
    assert reader[0].startswith("in time E0606") and "process 1" in reader[0], done.stdout + done.stderr


def test_processes_that_read_other_things_can_go_on():
    seen, done = _failing("readers_of_other_things")
    assert all("E0713" in texts[0] and texts[1:] == ["no error"] for texts in seen), done.stdout + done.stderr


def test_no_stage_is_updated_where_another_ones_backward_fails():
    seen, done = _failing("last_backward_fails")
    assert "E0601" in seen[0][0] and "E0606" in seen[1][0], done.stdout + done.stderr
    assert [texts[1] for texts in seen] == ["unchanged True"] * 2, seen


def test_poprun_says_how_many_devices_each_process_has():
    # In one piece: the processes write at the same time.
    text = "import poptorch; print(f'devices {poptorch.Options().Distributed.devices_per_process}')"
    done = poprun("--num-instances=2", "--num-replicas=1", "--ipus-per-replica=4", *program(text))
    assert done.stdout.count("devices 2") == 2, done.stdout + done.stderr
    done = poprun("--num-instances=2", "--num-replicas=2", *program(text))
    assert done.stdout.count("devices 0") == 2
    done = poprun("--num-instances=2", "--num-replicas=1", "--ipus-per-replica=3", "true")
    assert done.returncode == 2 and "3 devices cannot be shared by 2 instances" in done.stderr
