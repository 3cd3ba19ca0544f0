"""The C++ examples say what they show, and find it so themselves: they end with 0."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))


@pytest.mark.parametrize(
    "name, lines",
    [
        (
            "options",
            [
                "a call takes 30 rows and returns 30 outputs and 6 losses",
                "frozen: E0707",
                "refused: E0702",
                '"deviceIterations": 2',
            ],
        ),
        ("blocks", ["one stage: equal to eager", "pipeline: equal to eager", "sharded: equal to eager"]),
        ("optimizers", ["loss "]),
        ("custom_operators", ["the gradient of the operator: as torch's own", "refused: E0106"]),
        ("data_loading", ["2 batches of 24 rows", "ahead of time: 4560 of 4560", "stream: 48 rows"]),
        ("errors", ["E0704 input-changed", "E0101: ", "unchanged: of the program"]),
    ],
)
def test_example(name, lines):
    done = subprocess.run([BUILD / "examples" / name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in lines:
        assert line in done.stdout
