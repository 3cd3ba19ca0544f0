"""Programs that start warm do what they do otherwise."""

import os
import signal
import subprocess
import sys

import pytest
from support import warm

PROGRAM = """
import os, signal, sys
print(sys.argv[1:], __name__, os.environ.get("OWN"), os.getcwd(), sys.path[0], sys.stdin.read())
print("an error", file=sys.stderr)
"""


def run(words, **settings):
    done = subprocess.run([*words], capture_output=True, text=True, timeout=300, **settings)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        PROGRAM,
        "import sys; sys.exit(3)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
        "raise ValueError(1)",
    ],
    ids=["says", "exits", "crashes", "raises"],
)
def test_it_says_and_ends_as_it_does_otherwise(tmp_path, text):
    (tmp_path / "program.py").write_text(text)
    for words in (["-c", text, "a", "b"], [tmp_path / "program.py", "a"]):
        settings = {"cwd": tmp_path, "env": {**os.environ, "OWN": "1"}, "input": "words"}
        assert run([*warm.python(), *words], **settings) == run([sys.executable, *words], **settings)


def test_it_starts_with_torch_alone():
    text = "import sys; print('torch' in sys.modules, [name for name in sys.modules if 'abele' in name])"
    assert run([*warm.python(), "-c", text])[1] == "True []\n"


def test_an_environment_that_says_how_python_starts_counts():
    text = "import os, sys; print(sys.flags.optimize, 'torch' in sys.modules)"
    env = {**os.environ, "PYTHONOPTIMIZE": "1"}
    assert run([*warm.python(), "-c", text], env=env)[1] == "1 False\n"


def test_what_is_imported_is_found_as_otherwise(tmp_path):
    (tmp_path / "beside.py").write_text("found = 5")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert run([*warm.python(), "-c", "import beside; print(beside.found)"], env=env)[1] == "5\n"


def started(text):
    """A program that has written its process number."""
    process = subprocess.Popen([*warm.python(), "-c", text], stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline())


def test_a_signal_reaches_it():
    handler = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))"
    process, _ = started(f"import os, signal, sys; {handler}; print(os.getpid(), flush=True); signal.pause()")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == 4


def test_it_ends_when_it_is_killed():
    process, pid = started("import os, signal; print(os.getpid(), flush=True); signal.pause()")
    process.kill()
    assert process.stdout.read() == "", "its end of the pipe is closed"
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(pid, 0)
