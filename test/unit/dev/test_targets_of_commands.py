"""./dev answers help and refuses wrong options before it sets anything up; benchmarks say what is built for them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

from devtool import programs  # noqa: E402

BENCHMARKS = sorted((ROOT / "bench").glob("*.py"))
COMMANDS = "setup build test mutants golden format lint demo check bench wheel docs timing".split()


def dev(*words):
    """Set-up would end it at once: it has no interpreter."""
    env = {**os.environ, "ABELE_PYTHON": "/no/such/python"}
    return subprocess.run([sys.executable, ROOT / "dev", *words], text=True, capture_output=True, env=env)


def test_help_sets_nothing_up():
    for command in COMMANDS:
        done = dev(command, "--help")
        assert done.returncode == 0 and done.stdout.startswith(f"usage: ./dev {command}"), done.stderr
    assert "--model" in dev("demo", "--help").stdout
    asked = dev("bench", "smoke", "--help")
    assert (asked.returncode, asked.stderr) == (0, "")
    assert "with the very same losses?" in asked.stdout and "--workloads" in asked.stdout
    assert "one of autosplit, " in dev("bench", "--help").stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["demo", "--fast"], "unrecognized arguments: --fast"),
        (["bench", "smoke", "--fast"], "unrecognized arguments: --fast"),
        (["bench", "smoke", "--samples", "many"], "invalid int value: 'many'"),
        (["bench", "fast"], "invalid choice: 'fast'"),
        (["bench"], "arguments are required: NAME"),
        (["timing", "--fast"], "unrecognized arguments: --fast"),
    ],
)
def test_wrong_words_are_refused_before_set_up(words, found):
    done = dev(*words)
    assert done.returncode == 2 and found in done.stderr, done.stderr
    assert done.stdout == ""


def test_right_words_reach_set_up():
    for words in (["demo", "--model", "vit"], ["bench", "smoke", "--setups=1x2", "--samples", "3"]):
        assert "/no/such/python is no program" in dev(*words).stderr


@pytest.mark.parametrize("source", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_says_its_options_and_what_it_starts(source):
    text = source.read_text()
    shown = len(re.findall(r"^  --", programs.parser(source, "").format_help(), re.M))
    assert shown == text.count("add_argument(") - text.count("argparse.SUPPRESS")
    started = re.findall(r'\bbuilt\("([\w-]+)"\)', text)
    assert set(started) <= set(programs.targets(source))


def test_a_benchmark_builds_what_it_needs():
    assert programs.targets(ROOT / "bench" / "smoke.py") == ["abele_python"]
    assert programs.targets(ROOT / "bench" / "limit.py") == ["abele_python", "abele-replay"]
    assert programs.targets(ROOT / "examples" / "python" / "digits.py") == ["abele_python"]
