"""E0606: two processes, of which one ends while they train."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "multi"))
from launch import HERE, poprun


def test_error():
    done = poprun("--num-instances=2", sys.executable, HERE / "failing.py", "ends")
    assert "1: E0606 processes: " in done.stdout, done.stdout + done.stderr
