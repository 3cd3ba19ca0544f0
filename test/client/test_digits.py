"""The demo: its Python and its C++ program print the same losses, and both networks learn to read digits."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def python_program(*arguments):
    return run(sys.executable, ROOT / "examples" / "python" / "digits.py", *arguments)


@pytest.mark.parametrize("model", ["vit", "resnet"])
def test_python_and_cpp_print_the_same_losses(model):
    arguments = ["--model", model, "--epochs", 2, "--steps", 26, "--print-losses", "--no-eager", "--seed", 3]
    theirs = run(BUILD / "examples" / "digits", *arguments)
    ours = python_program(*arguments)
    losses = re.findall(r"^step \d+ loss \S+$", ours, re.MULTILINE)
    assert len(losses) == 26
    assert re.findall(r"^step \d+ loss \S+$", theirs, re.MULTILINE) == losses


@pytest.mark.parametrize(("model", "least"), [("vit", 95.0), ("resnet", 97.0)])
def test_networks_learn(model, least):
    output = python_program("--model", model)
    assert "largest difference from eager PyTorch's losses in 22 steps: 0\n" in output
    last = output.splitlines()[-1]
    assert re.fullmatch(r"test accuracy \d+\.\d %", last)
    assert float(last.split()[2]) >= least
