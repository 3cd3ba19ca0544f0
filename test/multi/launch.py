"""Starts programs with poprun, as a user does. Those of Python start warm (support/warm.py)."""

import os
import pathlib
import subprocess
import sys

import torch
from support import warm

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
POPRUN = (ROOT / os.environ.get("ABELE_BUILD_DIR", "build/dev")).resolve() / "tools" / "poprun"
LIMIT_S = 180  # far beyond what anything takes: a test that hangs shall fail


def _call(arguments, variables, files=None):
    """The command and its environment. files: the most that its processes may open."""
    path = os.pathsep.join([str(HERE), *sys.path])
    words = [word for each in arguments for word in (warm.python() if each == sys.executable else [str(each)])]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "POPDIST_"))}
    command = [*(["prlimit", f"--nofile={files}"] if files else []), POPRUN, *words]
    return {"args": command, "env": {**inherited, "PYTHONPATH": path, **variables}, "text": True}


def poprun(*arguments, cwd=None, files=None, **variables):
    """Runs poprun with these arguments. Returns the CompletedProcess, its texts as str."""
    return subprocess.run(**_call(arguments, variables, files), cwd=cwd, capture_output=True, timeout=LIMIT_S)


def start(*arguments, **variables):
    """The same while it runs: a Popen whose stdout is a pipe."""
    return subprocess.Popen(**_call(arguments, variables), stdout=subprocess.PIPE)


def program(text):
    """poprun's arguments for a Python program that is given as text."""
    return [sys.executable, "-c", text]


def said(done, processes=2):
    """The lines "PROCESS: TEXT" that each of several processes printed, without their beginning."""
    lines = [line.split(": ", 1) for line in done.stdout.splitlines()]
    return [[words[1] for words in lines if words[0] == str(p) and len(words) == 2] for p in range(processes)]


def trained(script, folder, processes, names, launcher=(), **variables):
    """What each of several processes left of each case: script FOLDER NAME... writes FOLDER/NAME-PROCESS.pt. launcher:
    a script that runs it."""
    command = [sys.executable, *launcher, HERE / script, folder, *names]
    done = poprun("--num-instances", processes, *command, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name: [torch.load(folder / f"{name}-{p}.pt") for p in range(processes)] for name in names}


def _tensors(outputs):
    return [tensor for call in outputs for tensor in (call if isinstance(call, (list, tuple)) else [call])]


def require_equals_one(case, processes):
    """What trained() found of a case of stage_cases has the bits that one process makes."""
    alone = case.alone()
    for process, result in enumerate(processes):
        for ours, theirs in zip(_tensors(result["outputs"]), _tensors(alone["outputs"]), strict=True):
            own = case.share(theirs, process, len(processes))
            assert torch.equal(ours, own.view_as(ours)), f"a result in process {process}"
        for part in ("weights", "state"):
            assert result[part].keys() == alone[part].keys()
            for key, value in alone[part].items():
                assert torch.equal(result[part][key], value), f"{part} {key} in process {process}"


# Programs of failing_stages.py whose processes start a step from other numbers, and what the error says.
OTHER_STARTS = [
    ("other_batch", "process 1 was given another batch than process 0"),
    ("other_learning_rate", "process 1 has other hyper-parameters than process 0"),
    ("other_seed_of_dropout", "process 1 draws other random numbers than process 0"),
    ("other_tied_weights", "process 1 has other values of weights that both hold than process 0"),
]
