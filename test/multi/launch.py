"""Starts programs with poprun, as a user does."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
LIMIT_S = 180  # far beyond what anything takes: a test that hangs shall fail


def poprun(*arguments, cwd=None, **variables):
    """Runs poprun with these arguments. Returns the CompletedProcess, its texts as str."""
    path = os.pathsep.join([str(HERE), *sys.path])
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "POPDIST_"))}
    return subprocess.run(
        [sys.executable, "-m", "popdist._launcher", *map(str, arguments)],
        env={**inherited, "PYTHONPATH": path, **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def program(text):
    """poprun's arguments for a Python program that is given as text."""
    return [sys.executable, "-c", text]
