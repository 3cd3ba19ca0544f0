"""What the other processes see when one fails, ends, hangs or does something else."""

import os
import pathlib
import subprocess
import sys

from support import warm
from support.forked import place_of
from support.ports import free_port

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from launch import HERE, LIMIT_S, poprun


def _said(name, **variables):
    """What each of the two processes printed, by process."""
    done = poprun("--num-instances=2", sys.executable, HERE / "failing.py", name, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return [[line[3:] for line in lines if line.startswith(f"{process}: ")] for process in range(2)]


def test_a_process_that_ends():
    none, (first, second, survives) = _said("ends")
    assert none == []
    assert first.startswith("E0606 processes: process 0 ended or cannot be reached at process 1 of 2")
    assert second.startswith("E0606 processes: the processes do not run the same steps") and "process 0 ended" in second
    assert survives.startswith("survives True")


def test_processes_that_end_one_after_the_other_say_nothing_of_it(tmp_path):
    for process in range(2):
        os.mkfifo(tmp_path / str(process))
    port, path = free_port(), os.pathsep.join([str(HERE), *sys.path])
    running = [
        subprocess.Popen(
            [*warm.python(), HERE / "failing.py", "ends_in_turn"],
            env={**os.environ, "PYTHONPATH": path, "FIFOS": str(tmp_path), **place_of(process, 3, port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process in range(3)
    ]
    usual = ("every process compiles", "Graph compilation")
    for process in running:
        text = process.communicate(timeout=LIMIT_S)[0]
        said = [line for line in text.splitlines() if line and not any(words in line for words in usual)]
        assert (process.returncode, said) == (0, [])


def test_a_step_that_fails_in_one_process():
    (heard, weights), (own, other_weights) = _said("step_fails")
    assert heard.startswith("E0606 processes: another process failed") and "process 1: its step failed" in heard
    assert own.startswith("E0601 worker-failed") and "index out of range" in own
    assert weights == other_weights and weights.startswith("survives True")


def test_a_process_that_does_not_answer():
    _, (late, survives) = _said("is_silent", ABELE_PROCESS_TIMEOUT="2")
    assert late.startswith("E0606 processes: process 0 did not answer in time")
    assert survives.startswith("survives True")


def test_a_step_that_waits_for_others_can_be_interrupted():
    (heard,), (interrupted, survives) = _said("is_interrupted")
    assert interrupted == "interrupted" and survives.startswith("survives True")
    assert heard.startswith("E0606 processes: ")


def test_programs_that_differ():
    for error, survives in _said("other_program"):
        assert error.startswith("E0713 processes-differ: process 1 compiled another program than process 0")
        assert survives.startswith("survives True")


def test_weights_that_differ():
    for (error,) in _said("other_weights"):
        assert error.startswith("E0713 processes-differ: table.weight of process 1 differs from process 0's")


def test_optimizers_that_differ():
    for (error,) in _said("other_optimizer"):
        assert error.startswith("E0713 processes-differ: process 1 has other hyper-parameters than process 0")


def test_random_numbers_of_rounding_that_differ():
    for (error,) in _said("other_rounding"):
        assert error.startswith("E0713 processes-differ: process 1 rounds with other random numbers than process 0")
        assert "set the same randomSeed in each" in error


def test_weights_are_compared_after_each_upload():
    for same, changed in _said("loads_in_one_only"):
        assert same == "no error"
        assert changed.startswith("E0713 processes-differ: head.bias of process 1 differs")
