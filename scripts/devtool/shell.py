"""Running commands: printed first, timed by step, ended with a clear exit status."""

import os
import shlex
import subprocess
import sys
import tempfile
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


class Beside:
    """A command that runs while others do; what it prints is shown when it is finished."""

    def __init__(self, command: list, *, env: dict):
        show(command)
        self._output = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [str(w) for w in command],
            cwd=ROOT,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> "Beside":
        return self

    def __exit__(self, *_) -> None:
        """Ends it where an error or an interrupt has kept it from its end."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._output.close()

    def finish(self) -> int:
        """Waits, shows the output, returns the exit status."""
        status = self._process.wait()
        self._output.seek(0)
        print(self._output.read().decode(errors="replace"), end="", flush=True)
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
