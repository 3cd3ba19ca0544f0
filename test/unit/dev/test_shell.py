"""What ./dev gives to the programs that it calls, and shows of them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

NINJA = """#!/bin/sh
echo "ninja: Entering directory build/dev"
for i in 1 2 3; do
  echo "$NINJA_STATUS" | sed "s/%f/$i/; s/%t/3/; s/%w/00:0$i/; s/%W/00:0$((3 - i))/; s/$/Building $i.o/"
done
echo "a.cc:1: warning: what the compiler says"
exit $1
"""


def build(tmp_path, *words):
    ninja = tmp_path / "ninja"
    ninja.write_text(NINJA)
    ninja.chmod(0o755)
    code = f"from devtool import shell; shell.build({[str(ninja), *words]!r}, env={{}})"
    env = {"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, env=env)


def test_a_build_says_how_far_it_is_and_what_compilers_say(tmp_path):
    done = build(tmp_path, "0")
    assert done.returncode == 0, done.stderr
    assert "[1/3, 00:01, 00:02 left] Building 1.o" in done.stdout
    assert "Building 2.o" not in done.stdout  # a file is not the place for a line every moment
    assert "a.cc:1: warning: what the compiler says\n" in done.stdout and "Entering" not in done.stdout


def test_a_build_that_fails_ends_dev(tmp_path):
    done = build(tmp_path, "7")
    assert done.returncode == 7 and "failed with status 7" in done.stderr


def test_pip_speaks_only_when_it_fails(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho WARNING: an index is not there\nexit $STATUS\n")
    python.chmod(0o755)
    code = f"from devtool import setup; setup._pip({str(python)!r}, ['numpy'])"
    env = {"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"}
    for status in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code], text=True, capture_output=True, env={**env, "STATUS": status}
        )
        assert done.returncode == int(status)
        assert ("WARNING" in done.stdout + done.stderr) == (status == "1")


def parsed(*words):
    code = "import sys; from devtool.main import parse; print(parse(sys.argv[1:]).rest)"
    env = {"PYTHONPATH": str(ROOT / "scripts"), "PATH": "/usr/bin:/bin"}
    return subprocess.run([sys.executable, "-c", code, *words], text=True, capture_output=True, env=env)


def test_options_of_the_demonstration_and_of_benchmarks_reach_them():
    assert parsed("demo", "--model", "vit").stdout == "['--model', 'vit']\n"
    assert parsed("bench", "memory", "--runs", "3", "--help").stdout == "['--runs', '3', '--help']\n"
    refused = parsed("build", "--fast")
    assert refused.returncode == 2 and "unrecognized arguments: --fast" in refused.stderr
