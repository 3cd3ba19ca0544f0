"""E0713: two processes, each with weights of its own."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "multi"))
from launch import HERE, poprun


def test_error():
    done = poprun("--num-instances=2", sys.executable, HERE / "failing.py", "other_weights")
    assert "1: E0713 processes-differ: " in done.stdout, done.stdout + done.stderr
