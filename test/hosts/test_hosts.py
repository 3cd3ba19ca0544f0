"""Trainings over several hosts, which are network namespaces with process numbers of their own (support/hosts.py)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[1] / "multi"))
import stage_cases
from hosts import Hosts, missing

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

PLACES = [0, 0, 1, 2]  # the host of each process
CASES = ["1f1b", "tied", "clipped", "two-replicas", "two-replicas-dropout"]
CUTS = int(os.environ.get("ABELE_KILLS", "2"))
LIMIT_S = 240  # far beyond what anything takes: a test that hangs shall fail


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
        command = [sys.executable, *map(str, arguments)]
        running.append(hosts.start(host, command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    return running


def said(running):
    """What each wrote, to its end."""
    return [process.communicate(timeout=LIMIT_S)[0] for process in running]


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


def untilStep(process, step):
    for line in process.stdout:
        if line == f"step {step}\n":
            return
    raise AssertionError("the training ended early")


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    with Hosts(3) as hosts:
        texts = said(start(hosts, [0, 1, 2], [HERE / "train.py", folder, 30]))
    assert all(text.endswith("done\n") for text in texts), texts
    return torch.load(folder / "end-0.pt")


@pytest.mark.parametrize("way", ["cut", "dead"])
@pytest.mark.parametrize("number", range(CUTS))
def test_a_host_that_is_gone_ends_the_step_everywhere_and_the_run_goes_on(tmp_path, uninterrupted, number, way):
    """Nothing tells the others: no connection is closed."""
    gone = number % 3
    with Hosts(3) as hosts:
        running = start(hosts, [0, 1, 2], [HERE / "train.py", tmp_path, 1000], ABELE_PEER_SILENCE=3)
        untilStep(running[gone], 4 + 5 * number % 7)
        hosts.cut(gone)
        if way == "dead":
            hosts.kill(gone)
        texts = said(running)
    for process, text in enumerate(texts):
        if way == "cut" or process != gone:
            assert "E0606" in text.splitlines()[-1], (process, text[-2000:])
            assert running[process].returncode == 3
    with Hosts(3) as hosts:
        texts = said(start(hosts, [0, 1, 2], [HERE / "train.py", tmp_path, 30]))
    assert all(text.endswith("done\n") for text in texts), texts
    for process in range(3):
        for name, value in torch.load(tmp_path / f"end-{process}.pt").items():
            assert torch.equal(value, uninterrupted[name]), (process, name)
