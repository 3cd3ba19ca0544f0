"""Predictions and choices count the links between processes with the times of the machine file, or default times, the
same in all processes."""

import json
import pathlib
import subprocess
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import links_program
from launch import HERE, POPRUN, poprun

NAMES = ["plain", "described", "rounded", "auto", "split"]
WITHIN, BETWEEN = "within a host", "between hosts"


def _file(folder, *links, name="machine.json"):
    """A machine file with links of these names."""
    times = {"latency_ns": 12_345, "bytes_per_s": 678_000_000}
    path = folder / name
    path.write_text(json.dumps({"links": [{"name": link, "devices": 2**at, **times} for at, link in enumerate(links)]}))
    return path


def _run(folder, names, processes=2, devices=2, launcher=(), **variables):
    command = [sys.executable, *launcher, HERE / "links_program.py", folder, devices, *names]
    variables = {"XDG_CONFIG_HOME": str(folder / "nothing"), **{k: str(v) for k, v in variables.items()}}
    return poprun("--num-instances", processes, *command, **variables)


def _found(folder, names, processes=2, **settings):
    done = _run(folder, names, processes, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: [torch.load(folder / f"{name}-{p}.pt") for p in range(processes)] for name in names}


def _measure(path, processes, **settings):
    """Runs `abele env --measure`. Returns: (the machine file, its output)."""
    done = _run(path.parent, ["measure"], processes, ABELE_MACHINE=path, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(path.read_text()), done.stdout


def _require_link(link, name):
    assert link["name"] == name and link["latency_ns"] >= 0 and link["bytes_per_s"] > 0


@pytest.fixture(scope="module")
def by_default(tmp_path_factory):
    return _found(tmp_path_factory.mktemp("two"), NAMES)


def test_links_have_default_times_and_explain_says_so(by_default):
    for found in by_default["plain"]:
        (link,) = found["machine"]["links"]
        assert found["machine"]["space_devices"] == 1
        assert link == {"name": "within a host (default)", "latency_ns": 5_000, "bytes_per_s": 5_000_000_000}
        says = "(defaults; abele env --measure measures links): within a host (default) 5.000 us and 5.000 GB/s"
        assert f"links {says}\n" in found["explain"], found["explain"]
        assert found["links"] == says


def test_predictions_count_messages(by_default):
    for found in by_default["plain"]:
        sent = links_program.ROWS * links_program.WIDTH * 4
        assert [(t["bytes"], t["link"]) for t in found["transfers"]] == [(sent, "within a host (default)")] * 2


def test_a_machine_that_is_described_counts_instead(by_default):
    for found in by_default["described"]:
        assert found["machine"]["name"] == "described"
        assert found["machine"]["links"] == links_program.SLOW["links"]
        assert "links (described): a slow wire 2000.000 us and 0.001 GB/s\n" in found["explain"], found["explain"]


def test_rounding_at_random_depends_on_no_links(by_default):
    assert [found["machine"] for found in by_default["rounded"]] == [None, None]
    assert [found["links"] for found in by_default["rounded"]] == ["", ""]


@pytest.mark.parametrize("name", ["plain", "described", "auto", "split"])
def test_results_do_not_depend_on_links(by_default, name):
    alone = links_program.trained(name, 2)
    assert alone["machine"] is None or name == "described"
    for process, found in enumerate(by_default[name]):
        for ours, theirs in zip(found["results"], alone["results"], strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)), f"process {process}"
        for key, value in alone["weights"].items():
            assert torch.equal(found["weights"][key], value), f"{key} in process {process}"


def test_all_processes_use_the_file_of_the_first(tmp_path):
    """The second one has a file that cannot be read, as on another host."""
    own = _file(tmp_path, WITHIN)
    (tmp_path / "other.json").write_text("{")
    found = _found(tmp_path, ["plain"], ABELE_MACHINE=own, LINKS_FILE_1=tmp_path / "other.json")["plain"]
    assert found[0]["machine"] == found[1]["machine"]
    assert found[0]["machine"]["name"] == "as measured"
    assert found[0]["machine"]["links"] == [{"name": WITHIN, "latency_ns": 12_345, "bytes_per_s": 678_000_000}]
    assert "links (as measured): within a host 12.345 us and 0.678 GB/s\n" in found[1]["explain"]


def test_the_file_is_in_the_user_s_folder(tmp_path):
    folder = tmp_path / "config" / "abele"
    folder.mkdir(parents=True)
    _file(folder, WITHIN)
    found = _found(tmp_path, ["plain"], XDG_CONFIG_HOME=folder.parent)["plain"]
    assert found[0]["machine"]["name"] == "as measured"


def test_processes_of_several_hosts_and_several_devices(tmp_path):
    """Two neighbours are on one host, as the launcher says. The file knows one of the two kinds of links."""
    settings = {"processes": 4, "devices": 8, "LINKS_ON_HOST": 2, "ABELE_MACHINE": _file(tmp_path, BETWEEN)}
    found = _found(tmp_path, ["plain"], **settings)["plain"]
    assert all(one["machine"] == found[0]["machine"] for one in found)
    assert found[0]["machine"]["space_devices"] == 2
    within, between = found[0]["machine"]["links"]
    assert within == {
        "name": "within a host (default)", "devices": 4, "latency_ns": 5_000, "bytes_per_s": 5_000_000_000
    }  # fmt: skip
    assert between == {"name": BETWEEN, "latency_ns": 12_345, "bytes_per_s": 678_000_000}


def test_a_file_that_is_wrong_is_an_error(tmp_path):
    unknown = _file(tmp_path, "a wire")
    done = _run(tmp_path, ["plain"], ABELE_MACHINE=unknown)
    assert done.returncode != 0 and "E0404" in done.stderr
    assert f'machine file {unknown} has a link "a wire"' in done.stderr, done.stderr
    unknown.write_text('{"links": 3}')
    done = _run(tmp_path, ["plain"], ABELE_MACHINE=unknown)
    assert "E0404" in done.stderr and f"machine file {unknown}" in done.stderr, done.stderr
    done = _run(tmp_path, ["plain"], ABELE_MACHINE=tmp_path / "absent.json")
    assert done.returncode != 0 and "E0712" in done.stderr and "absent.json" in done.stderr, done.stderr


def test_equal_programs_have_one_executable(tmp_path):
    runs = [tmp_path / name for name in ("first", "second")]
    for folder in runs:
        folder.mkdir()
    _, second = (_found(folder, ["plain"], LINKS_CACHE=tmp_path / "cache")["plain"] for folder in runs)
    assert [found["from_cache"] for found in second] == [True, True]
    assert "within a host (default)" in second[0]["links"]


def test_the_tool_measures_what_programs_count_with(tmp_path):
    machine, says = _measure(tmp_path / "folder" / "machine.json", 2)
    assert machine["name"] == "as measured"
    (link,) = machine["links"]
    _require_link(link, WITHIN)
    assert says.startswith("links ") and says.count("within a host") == 1 and "machine.json" in says, says
    found = _found(tmp_path, ["plain"], ABELE_MACHINE=tmp_path / "folder" / "machine.json")["plain"]
    assert found[0]["machine"]["links"] == [link]


def test_the_tool_without_python_measures_too(tmp_path):
    path = tmp_path / "machine.json"
    command = [POPRUN.parent / "linked" / "abele-env", "--measure"]
    done = poprun("--num-instances", 2, *command, ABELE_MACHINE=str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    _require_link(json.loads(path.read_text())["links"][0], WITHIN)


def test_the_tool_starts_two_processes_itself(tmp_path):
    command = [sys.executable, "-m", "abele.cli.environment", "--measure"]
    path = tmp_path / "machine.json"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "ABELE_MACHINE": str(path)}
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=180)
    assert done.returncode == 0 and "warning" not in done.stderr.lower(), done.stdout + done.stderr
    _require_link(json.loads(path.read_text())["links"][0], WITHIN)


def test_the_tool_on_several_hosts_and_over_sockets(tmp_path):
    machine, _ = _measure(tmp_path / "machine.json", 4, LINKS_ON_HOST=2, ABELE_HANDOVER="sockets")
    within, between = machine["links"]
    _require_link(within, WITHIN)
    _require_link(between, BETWEEN)
    assert within["devices"] == 2 and "devices" not in between


def test_the_tool_measures_copies_of_accelerators(tmp_path):
    simulated = {"launcher": [HERE / "on_simulated.py"], "ABELE_DEVICE": "simulated"}
    machine, _ = _measure(tmp_path / "machine.json", 2, **simulated)
    copies, messages = machine["links"]
    _require_link(copies, "within a process")
    _require_link(messages, WITHIN)
    found = _found(tmp_path, ["plain"], devices=4, ABELE_MACHINE=tmp_path / "machine.json", **simulated)["plain"]
    assert found[0]["machine"]["space_devices"] == 1
    assert [link["name"] for link in found[0]["machine"]["links"]] == ["within a process", WITHIN]
    assert found[0]["machine"]["links"][0]["devices"] == 2
