"""The demo: its Python and its C++ program print the same losses, and both networks learn to read digits."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from support import warm

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))


def run(*command):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


def python_program(*arguments):
    return run(*warm.python(), ROOT / "examples" / "python" / "digits.py", *arguments)


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
    (accuracy,) = re.findall(r"^test accuracy (\d+\.\d) %$", output, re.M)
    assert float(accuracy) >= least


def test_the_end_explains_the_bubble_and_names_what_to_try():
    output = python_program("--model", "vit", "--steps", 3, "--no-eager")
    bubble = float(re.search(r"^bubble (\d+\.\d) % of the last step", output, re.M)[1])
    said = int(re.search(r"^Why the devices of vit waited (\d+) % of the last step$", output, re.M)[1])
    assert abs(said - bubble) <= 0.5
    # (4 - 1) / (8 + 4 - 1): what four equal stages wait whatever the machine.
    assert "4 equal stages and 8 micro-batches wait 27 %." in output
    few, many = reversed(re.search(r"predicted to wait (\d+) % instead of (\d+) %", output).groups())
    assert int(many) < int(few)
    steps = re.findall(r"^\d\. (.*)$", output[output.index("Three things to try next") :], re.M)
    assert len(steps) == 3
    for path in (steps[0].split()[-1], steps[2].split(":")[0]):
        assert (ROOT / path).exists() or Path(path).exists(), path
