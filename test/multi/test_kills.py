"""One of several processes is killed in the middle of training: the others end with a typed error, soon."""

import os
import pathlib
import subprocess
import sys

import pytest
from support import warm

HERE = pathlib.Path(__file__).parent
MOST_S = 60  # on any machine, however busy; how long it took is printed


@pytest.mark.parametrize("device", ["cpu", "simulated"])
@pytest.mark.parametrize("hold", ["replicas", "stages"])
@pytest.mark.parametrize("processes", [2, 4])
def test_a_process_that_is_killed(processes, hold, device):
    """ABELE_KILLS: how often; `./dev test --long` asks for 100 of each."""
    kills = int(os.environ.get("ABELE_KILLS", "4"))
    done = subprocess.run(
        [*warm.python(), HERE / "kills.py", str(processes), str(kills), hold],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "ABELE_DEVICE": device},
        capture_output=True,
        text=True,
        timeout=300 + 60 * kills,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == kills
    heard, ended = (max(float(line[column]) for line in lines) for column in (2, 3))
    what = f"{kills} kills of one of {processes} processes with {hold} on {device}"
    print(f"{what}: E0606 after {heard:.2f} s, the end after {ended:.2f} s at most")
    assert {line[1] for line in lines} == {",".join(["E0606:0"] * (processes - 1))}, done.stdout
    assert ended < MOST_S
