"""Starts programs with poprun, as a user does."""

import os
import pathlib
import subprocess
import sys

import torch

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
POPRUN = (ROOT / os.environ.get("ABELE_BUILD_DIR", "build/dev")).resolve() / "tools" / "poprun"
LIMIT_S = 180  # far beyond what anything takes: a test that hangs shall fail


def _call(arguments, variables):
    """The command and its environment."""
    path = os.pathsep.join([str(HERE), *sys.path])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "POPDIST_"))}
    command = [POPRUN, *map(str, arguments)]
    return {"args": command, "env": {**inherited, "PYTHONPATH": path, **variables}, "text": True}


def poprun(*arguments, cwd=None, **variables):
    """Runs poprun with these arguments. Returns the CompletedProcess, its texts as str."""
    return subprocess.run(**_call(arguments, variables), cwd=cwd, capture_output=True, timeout=LIMIT_S)


def start(*arguments, **variables):
    """The same while it runs: a Popen whose stdout is a pipe."""
    return subprocess.Popen(**_call(arguments, variables), stdout=subprocess.PIPE)


def program(text):
    """poprun's arguments for a Python program that is given as text."""
    return [sys.executable, "-c", text]


def trained(script, folder, processes, names, **variables):
    """What each of several processes left of each case: script FOLDER NAME... writes FOLDER/NAME-PROCESS.pt."""
    done = poprun("--num-instances", processes, sys.executable, HERE / script, folder, *names, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: [torch.load(folder / f"{name}-{p}.pt") for p in range(processes)] for name in names}
