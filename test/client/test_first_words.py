"""A first import and a first `abele env` warn of nothing, neither Python nor torch nor the native module."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*words):
    """An interpreter whose warnings are errors, with nothing of this one's environment that could hide them."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPYCACHEPREFIX") if name in os.environ}
    env = {**kept, "PYTHONPATH": str(ROOT / "python")}
    return subprocess.run([sys.executable, "-W", "error", *words], env=env, text=True, capture_output=True)


@pytest.mark.parametrize("package", ["poptorch", "popart", "popdist", "pva"])
def test_importing_says_nothing(package):
    done = run("-c", f"import {package}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_environment_is_listed_without_a_warning():
    done = run("-m", "abele.cli.environment")
    assert (done.returncode, done.stderr) == (0, "")
    assert "a pipeline of two stages trains" in done.stdout


def test_the_environment_tells_processors_of_one_name_apart():
    first_core = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    of = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first_core.splitlines())}
    named = f"{of['model name']} (family {of['cpu family']}, model {of['model']})"
    assert named in run("-m", "abele.cli.environment").stdout


def test_compiling_warns_of_nothing():
    """Bytecode hides these warnings from the second import on."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in sorted((ROOT / "python").rglob("*.py")):
            compile(source.read_text(), str(source), "exec")
