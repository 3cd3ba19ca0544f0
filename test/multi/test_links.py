"""The links between processes are measured when they compile, and are the machine that predictions and choices count
with, the same in all processes."""

import json
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import links_program
from launch import HERE, poprun

NAMES = ["plain", "described", "rounded", "auto", "split"]


def _found(folder, names, processes=2, devices=2, **variables):
    command = [sys.executable, HERE / "links_program.py", folder, devices, *names]
    done = poprun("--num-instances", processes, *command, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: [torch.load(folder / f"{name}-{p}.pt") for p in range(processes)] for name in names}


@pytest.fixture(scope="module")
def of_two(tmp_path_factory):
    return _found(tmp_path_factory.mktemp("two"), NAMES)


def _require_link(link, name):
    assert link["name"] == name and link["latency_ns"] >= 0 and link["bytes_per_s"] > 0


def test_all_processes_have_the_machine_that_was_measured(of_two):
    machines = [found["machine"] for found in of_two["plain"]]
    assert machines[0] == machines[1]
    assert machines[0]["name"] == "as measured" and machines[0]["space_devices"] == 1
    (link,) = machines[0]["links"]
    _require_link(link, "within a host")
    assert "devices" not in link


def test_predictions_count_messages(of_two):
    for found in of_two["plain"]:
        assert "within a host" in found["explain"], found["explain"]
        sent = links_program.ROWS * links_program.WIDTH * 4
        assert [(t["bytes"], t["link"]) for t in found["transfers"]] == [(sent, "within a host")] * 2


def test_a_machine_that_is_described_is_not_measured(of_two):
    for found in of_two["described"]:
        assert found["machine"]["name"] == "described"
        assert found["machine"]["links"] == links_program.SLOW["links"]
        assert "a slow wire" in found["explain"], found["explain"]


def test_rounding_at_random_depends_on_nothing_measured(of_two):
    assert [found["machine"] for found in of_two["rounded"]] == [None, None]


@pytest.mark.parametrize("name", ["plain", "described", "auto", "split"])
def test_results_do_not_depend_on_links(of_two, name):
    alone = links_program.trained(name, 2)
    assert alone["machine"] is None or name == "described"
    for process, found in enumerate(of_two[name]):
        for ours, theirs in zip(found["results"], alone["results"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), f"process {process}"
        for key, value in alone["weights"].items():
            assert torch.equal(found["weights"][key], value), f"{key} in process {process}"


def test_processes_with_several_devices(tmp_path):
    for found in _found(tmp_path, ["plain", "split"], devices=4)["plain"]:
        assert found["machine"]["space_devices"] == 2
        _require_link(found["machine"]["links"][0], "within a host")


def test_processes_of_several_hosts(tmp_path):
    """Two neighbours are on one host, as the launcher says."""
    found = _found(tmp_path, ["plain"], processes=4, devices=4, LINKS_ON_HOST="2")["plain"]
    assert all(one["machine"] == found[0]["machine"] for one in found)
    within, between = found[0]["machine"]["links"]
    _require_link(within, "within a host")
    _require_link(between, "between hosts")
    assert within["devices"] == 2 and "devices" not in between


def test_over_sockets(tmp_path):
    found = _found(tmp_path, ["plain"], ABELE_HANDOVER="sockets")["plain"]
    assert found[0]["machine"] == found[1]["machine"]


def test_what_was_measured_is_kept_beside_the_executables(tmp_path):
    folders = [tmp_path / name for name in ("cache", "first", "second", "third")]
    for folder in folders:
        folder.mkdir()
    cache, *runs = folders
    first = _found(runs[0], ["plain"], LINKS_CACHE=str(cache))["plain"]
    compiled = next(found for found in first if not found["from_cache"])  # the other one may find what this one stored
    (kept,) = cache.glob("*.machine")
    assert json.loads(kept.read_text()) == compiled["machine"]
    second = _found(runs[1], ["plain"], LINKS_CACHE=str(cache))["plain"]
    assert [found["from_cache"] for found in second] == [True, True]
    kept.write_text("{")
    third = _found(runs[2], ["plain"], LINKS_CACHE=str(cache))["plain"]
    assert third[0]["results"][0][0].equal(first[0]["results"][0][0])
    assert json.loads(kept.read_text())["name"] == "as measured"


def test_copies_of_accelerators_count(tmp_path):
    launcher = [HERE / "on_simulated.py"]
    command = [sys.executable, *launcher, "links_program.py", tmp_path, 4, "plain"]
    done = poprun("--num-instances", 2, *command, ABELE_DEVICE="simulated")
    assert done.returncode == 0, done.stdout + done.stderr
    machines = [torch.load(tmp_path / f"plain-{p}.pt")["machine"] for p in range(2)]
    assert machines[0] == machines[1] and machines[0]["space_devices"] == 1
    copies, messages = machines[0]["links"]
    _require_link(copies, "within a process")
    _require_link(messages, "within a host")
    assert copies["devices"] == 2 and "devices" not in messages
