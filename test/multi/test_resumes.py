"""A training that is killed at random moments goes on from its last checkpoint: the bits of one that never stopped."""

import os
import pathlib
import subprocess
import sys

import pytest
from support import warm

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize("kind", ["alone", "stages", "parts"])
def test_every_resume_is_equal(tmp_path, kind):
    """ABELE_KILLS: how often; `./dev test --long` asks for 100 of each."""
    kills = int(os.environ.get("ABELE_KILLS", "4" if kind == "alone" else "2"))
    done = subprocess.run(
        [*warm.python(), HERE / "resumes.py", kind, str(kills), tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300 + 60 * kills,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr, done.stderr
    print(kind, done.stdout)
    assert done.stdout.startswith(f"{kills} kills in "), done.stdout
