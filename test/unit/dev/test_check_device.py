"""scripts/check_device.sh: its JSON has its form whatever the machine lacks. Building is not tested: minutes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
STEPS = ["machine", "headers", "configure", "build", "conformance", "links", "parity", "smoke"]


def check(*arguments, **environment):
    env = {**os.environ, "ABELE_PYTHON": sys.executable, **environment}
    command = ["/bin/sh", ROOT / "scripts" / "check_device.sh", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


def results(file):
    report = json.loads(file.read_text())
    assert report["format"] == "abele device check 1"
    assert {"started", "seconds", "device", "abele_device", "machine", "missing", "steps"} <= report.keys()
    for step in report["steps"]:
        assert {"name", "result", "seconds", "figures"} <= step.keys()
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
    """A compiler that finds no header, and neither CMake nor anything else."""
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
    """What the steps ask of a machine with these accelerators."""
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
