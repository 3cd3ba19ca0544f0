"""Running commands: printed first, timed by step, ended with a clear exit status."""

import os
import re
import shlex
import shutil
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


def quiet(command: list, *, env: dict | None = None, stdin: str = "") -> tuple[int, str]:
    """Runs a command that only asks something. Returns (status, stdout and stderr)."""
    done = subprocess.run(
        [str(w) for w in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        text=True,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return done.returncode, done.stdout


SECONDS_BETWEEN_LINES = 15


def build(command: list, *, env: dict) -> None:
    """Shows and runs ninja: how far it is on one line of a terminal, elsewhere now and then; all that compilers say.

    ninja predicts the time that is left from what units took before, new ones from those that this build has finished.
    A failure ends dev with it.
    """
    show(command)
    env = {**os.environ, **env, "NINJA_STATUS": "[%f/%t, %w, %W left] "}
    terminal, shown_s, length = sys.stdout.isatty(), float("-inf"), 0
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE) as ninja:
        for line in ninja.stdout:
            progress = re.match(r"\[\d+/\d+, ", line) is not None
            if progress and terminal:
                text = f"  {line.rstrip()}"[: shutil.get_terminal_size().columns - 1]
                print(f"\r{text:{length}}", end="", flush=True)
                length = len(text)
            elif progress and time.monotonic() - shown_s >= SECONDS_BETWEEN_LINES:
                print(f"  {line}", end="", flush=True)
                shown_s = time.monotonic()
            elif not progress and not line.startswith(("ninja: Entering directory", "ninja: no work to do")):
                print(f"\r{'':{length}}\r{line}" if length else line, end="", flush=True)
                length = 0
    if length:
        print(f"\r{'':{length}}\r", end="", flush=True)
    if ninja.returncode != 0:
        fail(f"failed with status {ninja.returncode}: {' '.join(map(str, command))}", max(ninja.returncode, 1))


def run_silently(command: list, *, env: dict | None = None) -> None:
    """Shows and runs a command whose output matters only when it fails; then dev ends with it."""
    show(command)
    status, text = quiet(command, env=env)
    if status != 0:
        fail(f"{text}\nfailed with status {status}: {' '.join(map(str, command))}")
