"""scripts/check_device.sh: its JSON has its form on every machine. Building is not tested, because it takes minutes."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
_spec = importlib.util.spec_from_file_location("check_device", ROOT / "scripts" / "check_device.py")
check_device = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_device)
STEPS = ["machine", "headers", "configure", "build", "conformance", "trainings", "links", "parity", "smoke"]


def check(*arguments, **environment):
    env = {**os.environ, "ABELE_PYTHON": sys.executable, **environment}
    command = ["/bin/sh", ROOT / "scripts" / "check_device.sh", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def results(file):
    report = json.loads(file.read_text())
    assert report["format"] == "abele device check 1"
    keys = {"started", "seconds", "minutes", "interrupted", "device", "abele_device", "machine", "missing", "steps"}
    assert keys <= report.keys()
    for step in report["steps"]:
        assert {"name", "result", "seconds", "figures", "skipped"} <= step.keys()
        assert step["result"] == "passed" or step["why"]
    return report, {step["name"]: step for step in report["steps"]}


def test_lists_its_steps():
    done = check("--list")
    assert done.returncode == 0 and [line.split()[0] for line in done.stdout.splitlines()] == STEPS
    page = (ROOT / "docs" / "device_check.md").read_text()
    assert all(f"`{step}`" in page for step in STEPS)


def test_a_dry_run_tells_the_machine(tmp_path):
    done = check("--dry-run", "--out", tmp_path / "check.json", "--build", tmp_path / "build")
    assert done.returncode == 0, done.stdout
    report, steps = results(tmp_path / "check.json")
    assert list(steps) == STEPS
    assert steps["machine"]["result"] == "passed"
    assert all(steps[name]["why"] == "dry run" for name in STEPS[1:])
    assert report["machine"]["torch"] and report["machine"]["type"] == report["device"]
    assert report["abele_device"] in ("cpu", report["device"])
    assert not (tmp_path / "build").exists()


def test_what_a_machine_lacks_is_noted_and_the_rest_goes_on(tmp_path):
    """A compiler that finds no header, and no other tools."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "g++").write_text("#!/bin/sh\nexit 1\n")
    (tools / "g++").chmod(0o755)
    done = check("--only", "headers,configure,build,smoke", "--out", tmp_path / "c.json", PATH=str(tools))
    assert done.returncode == 1
    report, steps = results(tmp_path / "c.json")
    assert {m["package"] for m in report["missing"]} >= {"libspdlog-dev", "nlohmann-json3-dev", "libxxhash-dev"}
    assert "--headers" in steps["headers"]["why"] and "nlohmann/json.hpp" in steps["headers"]["why"]
    assert [steps[name]["result"] for name in ("configure", "build", "smoke")] != ["passed"] * 3
    assert steps["build"]["result"] == "skipped" and steps["smoke"]["result"] == "skipped"
    assert check("--only", "headers", "--out", tmp_path / "d.json", PATH=str(tmp_path)).returncode == 1
    assert results(tmp_path / "d.json")[1]["headers"]["why"] == "no g++"


def told(devices):
    """The questions of the steps to a machine with these accelerators."""
    code = (
        "import json, check_device as c; check = c.Check(c.parse([])); report = check.report;"
        f"report['machine']['devices'] = {devices}; report['abele_device'] = 'cuda' if {devices} else 'cpu';"
        "print(json.dumps({name: check.environment(name).get('ABELE_DEVICE') for name in check.systems()}))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "scripts")}
    env.pop("ABELE_DEVICE", None)
    return json.loads(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=env).stdout)


def test_two_accelerators_are_told_apart():
    assert told([]) == {"abele-1": None, "abele-2": None}
    names = ("abele-1", "abele-2", "abele-1-graphs", "abele-2-graphs", "abele-2-off-chip")
    assert told([{}]) == dict.fromkeys(names, "cuda:0")
    assert told([{}, {}]) == dict.fromkeys(names, "cuda:0") | {"abele-2-apart": "cuda:0,cuda:1"}


def test_time_runs_out(tmp_path):
    done = check("--minutes", "0.01", "--out", tmp_path / "c.json")
    assert done.returncode == 0
    assert all("minutes are over" in step["why"] for step in results(tmp_path / "c.json")[1].values())


@pytest.mark.parametrize("name", ("none", "machine,none"))
def test_refuses_steps_that_there_are_not(tmp_path, name):
    done = check("--only", name, "--out", tmp_path / "c.json")
    assert done.returncode == 2 and "no step none" in done.stderr


class Pretended(check_device.Check):
    """A machine whose commands take the times of `takes`, in seconds of its own clock."""

    def __init__(self, given, takes):
        self.now = 0.0
        super().__init__(given, clock=lambda: self.now)
        self.takes = takes
        self.trained = []

    def tool(self, name):
        return name

    def version_of(self, name):
        return name

    def execute(self, command, seconds, text, env):
        assert 0 < seconds <= 60 * self.given.minutes - self.now, command
        what = "steps" if any("device_steps.py" in word for word in command) else command[1]
        self.output = "{}\n" if "device_links.py" in what else ""
        if "device_trainings.py" in what:
            self.output = json.dumps({"equal": 1, "different": {}, "failed": {}, "not_run": []}) + "\n"
        if what == "-c":
            devices = [{"name": "GPU", "bytes": 1}] * 2
            self.output = json.dumps({"torch": "2.13.0", "type": "cuda", "devices": devices, "include": ""}) + "\n"
        if what == "steps":
            workload, system = command[2:4]
            self.trained.append(f"{workload} {system}")
            self.output = json.dumps({"losses": [[1.0]], "first_s": 1.0}) + "\n"
        took = self.takes(what)
        self.now += min(took, seconds)
        if took > seconds:
            raise subprocess.TimeoutExpired(command, seconds)
        if what == "steps":
            self.output += json.dumps({"losses": [[1.0]], "first_s": 1.0, "step_ms": took, "host_ms": 1.0}) + "\n"
        return 0


def pretend(tmp_path, takes, minutes=7.5):
    given = check_device.parse(["--minutes", str(minutes), "--out", str(tmp_path / "c.json"), "--build", str(tmp_path)])
    given.only = STEPS
    machine = Pretended(given, takes)
    machine.take_all()
    assert machine.now <= 60 * minutes
    return machine, *results(tmp_path / "c.json")


@pytest.mark.parametrize("seed", range(30))
def test_nothing_takes_more_than_the_time_that_is_left(tmp_path, seed):
    draw = random.Random(seed)
    hangs = draw.choice([0, 0, 0.05, 0.3])
    longest = {"--build": draw.choice([60, 250, 600]), "steps": draw.choice([2, 15, 60])}
    takes = lambda what: 1e9 if draw.random() < hangs else draw.random() * longest.get(what, 5)  # noqa: E731
    machine, _, steps = pretend(tmp_path, takes)
    assert list(steps) == STEPS
    skipped = {run["run"] for step in steps.values() for run in step["skipped"]}
    if steps["build"]["result"] != "passed":
        assert machine.trained == [] and steps["parity"]["why"].startswith("build: ")
        return
    for workload, system in machine.pairs():  # every pair that is left out has a note
        row = steps["parity"]["figures"].get(workload, {})
        assert row.get(system) in ("equal", "skipped") or "took more than" in row[system]
        if row[system] == "skipped":
            assert {f"{workload} {system}", f"{workload} eager"} & skipped


def test_everything_fits_a_machine_that_is_quick_enough(tmp_path):
    machine, report, steps = pretend(tmp_path, lambda what: {"--build": 150, "steps": 4}.get(what, 3))
    assert {step["result"] for step in steps.values()} == {"passed"} and report["seconds"] < 450
    assert all(step["skipped"] == [] for step in steps.values())
    assert len(machine.trained) == len(set(machine.trained)) == 5 * (2 + 6)  # eager, compile and six of ours


def test_the_most_telling_come_first(tmp_path):
    machine, _, steps = pretend(tmp_path, lambda what: {"--build": 200, "steps": 12}.get(what, 3))
    first = [f"{name} {system}" for name in check_device.WORKLOADS for system in ("eager", "abele-1", "abele-2")]
    assert machine.trained[: len(first)] == first
    assert steps["parity"]["result"] == "passed" and steps["parity"]["skipped"]
    assert {run["run"].split()[-1] for run in steps["smoke"]["skipped"]} == {"compile"}
    for run in steps["parity"]["skipped"]:
        assert any(why in run["why"] for why in ("minutes are nearly over", "there were only", "there is less now"))


def test_time_is_not_wasted_on_a_workload_that_needs_more(tmp_path):
    takes = lambda what: {"--build": 100, "steps": 1e9}.get(what, 3)  # noqa: E731
    machine, _, steps = pretend(tmp_path, takes, minutes=4)
    assert [run.split()[1] for run in machine.trained] == ["eager"] * len(machine.trained) and machine.trained
    assert steps["parity"]["result"] == "skipped"


def test_a_build_that_takes_too_long_is_skipped(tmp_path):
    machine, _, steps = pretend(tmp_path, lambda what: {"--build": 1000}.get(what, 3))
    assert steps["build"]["result"] == "skipped" and "there were only" in steps["build"]["why"]
    assert steps["parity"]["result"] == steps["smoke"]["result"] == "skipped" and machine.trained == []


def test_losses_count_although_timing_was_stopped(tmp_path):
    calls = iter(range(1000))
    takes = lambda what: (1e9 if next(calls) == 1 else 3) if what == "steps" else 3  # noqa: E731
    _, _, steps = pretend(tmp_path, takes)
    name = check_device.WORKLOADS[0]
    assert steps["parity"]["figures"][name]["abele-1"] == "equal"
    assert "took more than 90 s" in steps["smoke"]["figures"][name]["abele-1"]["error"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_it_leaves_a_whole_file(tmp_path, number):
    env = {**os.environ, "ABELE_PYTHON": sys.executable}
    command = ["/bin/sh", ROOT / "scripts" / "check_device.sh", "--only", "machine,parity,smoke"]
    command += ["--out", tmp_path / "c.json", "--build", tmp_path / "build", "--workloads", "lstm"]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout.readline().split()[:2] == ["machine", "passed"]
        process.send_signal(number)
        process.stdout.read()
    assert process.returncode == 1
    report, steps = results(tmp_path / "c.json")
    assert report["interrupted"] == signal.Signals(number).name and list(steps) == ["machine", "parity", "smoke"]
    assert {steps[name]["result"] for name in ("parity", "smoke")} <= {"failed", "skipped"}
    assert all(f"interrupted by {report['interrupted']}" in steps[name]["why"] for name in ("parity", "smoke"))
