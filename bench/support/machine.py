"""Facts about the machine that a result has to state, and how much other programs used it meanwhile."""

import os
import platform
import socket
import subprocess
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
CROWDED = 0.05  # a sample is, when other programs used more than this share of the machine meanwhile


def built(name):
    """A program of the build that the package was loaded from."""
    path = Path(os.environ.get("ABELE_BUILD_DIR", ROOT.parent / "build/dev")) / name
    if not path.exists():
        raise SystemExit(f"{path} is missing: ./dev build {name}")
    return path


def describe():
    """Processor, cores, torch and commit, for the head of a result file."""
    lines = (line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines())
    of = {key.strip(): value.strip() for key, _, value in lines}
    commit = subprocess.run(
        ["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "processor": f"{of.get('model name')} (family {of.get('cpu family')}, model {of.get('model')})",
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "torch": torch.__version__,
        "commit": commit,
    }


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def busy_seconds():
    """CPU seconds that the whole machine has worked since it started, or was robbed of by its host."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def peak_bytes():
    """Largest resident memory of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0
