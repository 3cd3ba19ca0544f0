"""docs/scale.md shows the output of its commands, and its costs are those of the script that it names."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "scale.md"


def run(*arguments):
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def test_its_runs_are_those_of_today():
    done = run("scripts/run_page.py", "--check", str(PAGE))
    assert done.returncode == 0, done.stderr


def test_a_stale_page_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text().replace("least use%", "most use%"))
    done = run("scripts/run_page.py", "--check", str(page))
    assert done.returncode == 1 and "not what its commands print" in done.stderr


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("gpt_1b", "--layers 20 --width 2048"),
        ("gpt_10b", "--layers 39 --width 4640"),
        ("gpt_100b", "--layers 95 --width 9344 --recompute"),
    ],
)
def test_costs_are_made_by_the_script(name, sizes):
    assert f"`{name}.json`" in PAGE.read_text() and sizes in PAGE.read_text()
    done = run("scripts/gpt_costs.py", *shlex.split(sizes), "--machine", "docs/scale/fast_network.json")
    assert done.stdout == (ROOT / "docs" / "scale" / f"{name}.json").read_text()
