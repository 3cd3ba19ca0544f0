"""The C++ examples say what they show, and find it so themselves: they end with 0."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))


@pytest.mark.parametrize(
    "name, lines",
    [
        (
            "options",
            [
                "a call takes 30 rows and returns 30 outputs and 6 losses",
                "frozen: E0707",
                "refused: E0702",
                '"deviceIterations": 2',
            ],
        ),
        ("blocks", ["one stage: equal to eager", "pipeline: equal to eager", "sharded: equal to eager"]),
        ("optimizers", ["loss "]),
        ("custom_operators", ["the gradient of the operator: as torch's own", "refused: E0106"]),
        ("data_loading", ["2 batches of 24 rows", "ahead of time: 4560 of 4560", "stream: 48 rows"]),
        ("errors", ["E0704 input-changed", "E0101: ", "unchanged: of the program"]),
        ("processes", ["process 0 of 1: equal to one process"]),
        (
            "serving",
            ["392 requests have their own rows back, 8 wrong ones an error", "the first wrong request heard: "],
        ),
    ],
)
def test_example(name, lines):
    done = subprocess.run([BUILD / "examples" / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in lines:
        assert line in done.stdout


def test_gpt_prints_the_losses_of_python_and_writes_the_same_text():
    arguments = ["--steps", "8", "--length", "40", "--devices", "4", "--print-losses"]
    texts = []
    for command in ([BUILD / "examples" / "gpt"], [sys.executable, ROOT / "examples" / "python" / "gpt.py"]):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        losses = re.findall(r"^step \d+ loss \S+$", done.stdout, re.M)
        assert len(losses) == 8 and "eager PyTorch writes the same\n" in done.stdout
        (written,) = re.findall(r"^You may .{32}$", done.stdout, re.M | re.S)
        texts.append((losses, written))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("name", ["gpt", "serving"])
def test_help_and_unknown_arguments(name):
    text = subprocess.run([BUILD / "examples" / name, "--help"], capture_output=True, text=True, check=True).stdout
    assert text.startswith(f"{name} [--")
    done = subprocess.run([BUILD / "examples" / name, "--no-such"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "unknown argument --no-such" in done.stderr


def start(rank, name, count, port, *arguments, **variables):
    """One of the example's processes, as torchrun starts it."""
    place = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [BUILD / "examples" / name, *arguments],
        env={**os.environ, **place, **variables, "RANK": str(rank)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def started(name, count, *place, **variables):
    return [start(rank, name, count, *place, **variables) for rank in range(count)]


def test_two_processes_train_one_model_without_python(tmp_path):
    traces = {"PVTI_OPTIONS": json.dumps({"enable": "true", "directory": str(tmp_path / "traces")})}
    processes = started("processes", 2, free_port(), **traces)
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for rank, output in enumerate(outputs):
        assert f"process {rank} of 2: equal to one process" in output
    # One file for each process, with the span of the example's channel.
    traces = [json.loads(path.read_text())["traceEvents"] for path in (tmp_path / "traces").glob("*.pvti")]
    assert len(traces) == 2
    for events in traces:
        spans = [event for event in events if event["ph"] == "X"]
        (span,) = [event for event in spans if event["cat"] == "processes"]
        assert span["name"] == "train" and span["dur"] > 0
        assert len(spans) > 1  # and what the devices did


def test_a_signal_to_one_process_ends_all_behind_the_same_step():
    processes = started("processes", 2, free_port(), str(10**9))
    try:
        for rank, process in enumerate(processes):
            assert process.stdout.readline() == f"process {rank} of 2 trains\n"
        processes[1].send_signal(signal.SIGTERM)
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    (steps,) = {re.search(r"equal to one process after (\d+) steps", output)[1] for output in outputs}
    assert int(steps) < 10**9


def catches(process, number):
    """Whether the process has a handler of its own for this signal."""
    (mask,) = re.findall(r"SigCgt:\s*([0-9a-f]+)", Path(f"/proc/{process.pid}/status").read_text())
    return int(mask, 16) >> (number - 1) & 1 == 1


def test_a_signal_before_the_first_step_leaves_the_weights_of_the_start():
    port = free_port()
    processes = [start(0, "processes", 2, port, str(10**9))]  # waits for the other one
    try:
        while not catches(processes[0], signal.SIGTERM):
            assert processes[0].poll() is None
        processes[0].send_signal(signal.SIGTERM)
        processes.append(start(1, "processes", 2, port, str(10**9)))
        outputs = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert all("equal to one process after 0 steps" in output for output in outputs), outputs


def test_a_process_whose_others_do_not_come_says_so():
    (first, second) = started("processes", 2, free_port(), ABELE_PROCESS_TIMEOUT="3")
    second.kill()
    second.communicate()
    output = first.communicate(timeout=120)[0]
    assert first.returncode != 0 and "E0714" in output, output


def test_a_place_without_an_address_is_refused():
    for each in started("processes", 2, "", MASTER_ADDR=""):
        output = each.communicate(timeout=120)[0]
        assert each.returncode != 0 and "E0714" in output and "MASTER_ADDR and MASTER_PORT not set" in output, output
