"""Which interpreters get a wheel, and what it says of itself. scripts/try_wheel.py tries a whole one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))
pytest.importorskip("scikit_build_core")

from devtool import wheels  # noqa: E402 (scripts/ is known from here on)

WORKFLOW = ROOT / ".github" / "workflows" / "wheels.yml"


def test_a_wheel_asks_for_the_release_of_torch_that_it_is_built_with(tmp_path):
    code = "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as prepare; "
    code += "prepare(sys.argv[1], {})"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stdout + done.stderr
    (metadata,) = tmp_path.glob("abele-*.dist-info/METADATA")
    head = metadata.read_text().partition("\n\n")[0]
    numbers = re.findall(r"ABELE_VERSION_\w+ (\d+)", (ROOT / "include" / "abele" / "version.h").read_text())
    assert f"Version: {'.'.join(numbers)}\n" in head
    release = ".".join(torch.__version__.split(".")[:2])
    assert f"Requires-Dist: torch=={release}.*" in head.splitlines()


def test_each_version_with_torch_gets_one_and_others_are_named(tmp_path, monkeypatch, capsys):
    fit = {"version": [3, 12], "torch": "2.13.0+cpu", "headers": True, "installed": {}}
    answers = {
        "first": fit,
        "second": fit,
        "python3.11": {**fit, "version": [3, 11]},
        "python3.13": {**fit, "version": [3, 13], "torch": None},
        "old": {**fit, "version": [3, 13], "torch": "2.10.1"},
        "new": {**fit, "version": [3, 14]},
        "python3.12": {**fit, "torch": None},
        "bare": {**fit, "version": [3, 13], "headers": False},
    }
    for name, answer in answers.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    (tmp_path / "shim").write_text("#!/bin/sh\nexit 127\n")
    for program in tmp_path.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = wheels.interpreters([*answers, "shim", "no-such-python"])
    assert [Path(each.path).name for each in found] == ["first", "python3.11"]
    left_out = dict(re.findall(r"no wheel for (\S+): (.+)", capsys.readouterr().out))
    assert left_out == {
        "python3.13": "it has no torch",
        "old": "its torch is 2.10.1",
        "new": "it is Python 3.14",
        "bare": "it has no headers (Python.h)",
        "shim": "it cannot be run",
        "no-such-python": "it cannot be run",
    }


def test_releases_have_a_wheel_for_each_version():
    asked = re.findall(r'"(3\.\d+)"', WORKFLOW.read_text())
    assert [tuple(map(int, version.split("."))) for version in asked] == list(wheels.VERSIONS)
