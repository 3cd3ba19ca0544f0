"""Running commands: printed first, timed by step, ended with a clear exit status."""

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_START = time.monotonic()


def step(text: str) -> None:
    """One progress line."""
    print(f"dev [{time.monotonic() - _START:6.1f}s] {text}", flush=True)


def fail(text: str, code: int = 1) -> None:
    """Ends dev with a message."""
    print(f"dev: {text}", file=sys.stderr, flush=True)
    sys.exit(code)


def show(command: list) -> None:
    """Prints a command; of a long list of files only the first ones."""
    words = []
    for word in map(str, command[:20]):
        inside = word.startswith(f"{ROOT}/")
        words.append(shlex.quote(os.path.relpath(word, Path.cwd()) if inside else word))
    more = f" ... and {len(command) - 20} more" if len(command) > 20 else ""
    print("  $ " + " ".join(words) + more, flush=True)


def run(command: list, *, env: dict | None = None, cwd: Path = ROOT, check: bool = True) -> int:
    """Shows and runs a command with this terminal. Returns its status; with check, a failure ends dev with it."""
    show(command)
    status = subprocess.run([str(w) for w in command], cwd=cwd, env={**os.environ, **(env or {})}).returncode
    if check and status != 0:
        fail(f"failed with status {status}: {' '.join(map(str, command))}", status if 0 < status < 126 else 1)
    return status


def quiet(command: list, *, env: dict | None = None) -> tuple[int, str]:
    """Runs a command that only asks something. Returns (status, stdout and stderr)."""
    done = subprocess.run(
        [str(w) for w in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


def run_silently(command: list, *, env: dict | None = None) -> None:
    """Shows and runs a command whose output matters only when it fails; then dev ends with it."""
    show(command)
    status, text = quiet(command, env=env)
    if status != 0:
        fail(f"{text}\nfailed with status {status}: {' '.join(map(str, command))}")
