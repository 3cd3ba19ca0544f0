"""Trainings over several hosts, which are network namespaces with process numbers of their own (support/hosts.py)."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support import warm

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "multi"))
import stage_cases
from hosts import Hosts, missing

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PLACES = [0, 0, 1, 2]  # the host of each process
CASES = ["1f1b", "tied", "clipped", "two-replicas", "two-replicas-dropout"]
FAULTS = int(os.environ.get("ABELE_KILLS", "2"))  # of each kind; `./dev test --long` asks for 20
LIMIT_S = 240  # far beyond what anything takes: a test that hangs shall fail
MOST_S = 60  # until the others hear of it, on any machine, however busy; how long it took is printed
SILENCE_S = 3


def start(hosts, places, arguments, **variables):
    """One process for each place, which find each other as torchrun's would."""
    running = []
    for process, host in enumerate(places):
        own = {
            "RANK": process,
            "WORLD_SIZE": len(places),
            "LOCAL_RANK": places[:process].count(host),
            "LOCAL_WORLD_SIZE": places.count(host),
            "MASTER_ADDR": hosts.address(places[0]),
            "MASTER_PORT": 29500,
            **variables,
        }
        path = os.pathsep.join([str(HERE), str(HERE.parent / "multi"), *sys.path])
        env = {**os.environ, "PYTHONPATH": path, **{name: str(value) for name, value in own.items()}}
        command = [*warm.python(), *map(str, arguments)]
        running.append(hosts.start(host, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return running


def said(running):
    """What each wrote, to its end."""
    return [process.communicate(timeout=LIMIT_S)[0] for process in running]


def all_done(running):
    """Waits for trainings that come to their end."""
    for number, (process, text) in enumerate(zip(running, said(running), strict=True)):
        assert process.returncode == 0 and text.endswith("done\n"), (number, process.returncode, text[-2000:])


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Of each process by case, over a slow wire that loses packets."""
    folder = tmp_path_factory.mktemp("hosts")
    with Hosts(3, delay_s=0.001, loss=0.002, bytes_per_s=20e6) as hosts:
        running = start(hosts, PLACES, [HERE.parent / "multi" / "run_stage_cases.py", folder, *CASES])
        texts = said(running)
        assert [process.returncode for process in running] == [0] * len(PLACES), texts
    return {name: [torch.load(folder / f"{name}-{process}.pt") for process in range(len(PLACES))] for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_one_process(results, name):
    case = stage_cases.CASES[name]
    alone = case.alone()
    for process, result in enumerate(results[name]):
        for ours, theirs in zip(result["outputs"], alone["outputs"], strict=True):
            for own, whole in zip(ours, theirs, strict=True):
                expected = case.share(whole, process, len(PLACES))
                assert torch.equal(own, expected.view_as(own)), f"a result in process {process}"
        for part in ("weights", "state"):
            for key, value in alone[part].items():
                assert torch.equal(result[part][key], value), f"{part} {key} in process {process}"


def test_hosts_hand_over_through_sockets_and_processes_of_one_through_memory(tmp_path):
    with Hosts(2) as hosts:
        script = HERE.parent / "multi" / "run_stage_cases.py"
        texts = said(start(hosts, [0, 0, 1, 1], [script, tmp_path, "1f1b"], POPTORCH_LOG_LEVEL="INFO"))
    assert "hands over through shared memory" in texts[0] and "hands over through sockets" in texts[1]


def until_step(process, step):
    for line in process.stdout:
        if line == f"step {step}\n":
            return
    raise AssertionError("the training ended early")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with Hosts(3) as hosts:
        all_done(start(hosts, [0, 1, 2], [HERE / "train.py", folder, 30]))
    return torch.load(folder / "end-0.pt")


@pytest.fixture(scope="module")
def faults():
    """Takes what each fault was, and how long the others took to say so. ABELE_FAULTS: a file for all of them."""
    taken = []
    yield taken
    for way in sorted({fault["way"] for fault in taken}):
        heard = sorted(fault["heard_s"] for fault in taken if fault["way"] == way)
        print(f"{len(heard)} hosts {way}: E0606 after {heard[len(heard) // 2]:.2f} s, at most {heard[-1]:.2f} s")
    if "ABELE_FAULTS" in os.environ:
        sys.path.insert(0, str(HERE.parents[1] / "bench" / "support"))
        import machine

        what = {"machine": machine.describe(), "peer_silence_s": SILENCE_S, "faults": taken}
        Path(os.environ["ABELE_FAULTS"]).write_text(json.dumps(what, indent=1) + "\n")


@pytest.mark.parametrize("way", ["cut", "dead", "killed"])
@pytest.mark.parametrize("number", range(FAULTS))
def test_a_host_that_is_gone_ends_the_step_everywhere_and_the_run_goes_on(tmp_path, uninterrupted, faults, number, way):
    """cut: its wire, and nothing tells the others. dead: the same, and all that runs there ends, as without power.
    killed: all that runs there ends, and its kernel closes the connections."""
    gone, step = number % 3, 4 + 5 * number % 7
    with Hosts(3) as hosts:
        running = start(hosts, [0, 1, 2], [HERE / "train.py", tmp_path, 1000], ABELE_PEER_SILENCE=SILENCE_S)
        until_step(running[gone], step)
        begin = time.monotonic()
        if way != "killed":
            hosts.cut(gone)
        if way != "cut":
            hosts.kill(gone)
        texts = said(running)
    heard = []
    for process, text in enumerate(texts):
        if way == "cut" or process != gone:
            code, when, *_ = text.splitlines()[-1].split()
            assert code == "E0606", (process, text[-2000:])
            assert running[process].returncode == 3
            heard.append(float(when) - begin)
    faults.append({"way": way, "host": gone, "step": step, "heard_s": round(max(heard), 3)})
    assert max(heard) < MOST_S
    with Hosts(3) as hosts:
        all_done(start(hosts, [0, 1, 2], [HERE / "train.py", tmp_path, 30]))
    for process in range(3):
        for name, value in torch.load(tmp_path / f"end-{process}.pt").items():
            assert torch.equal(value, uninterrupted[name]), (process, name)
