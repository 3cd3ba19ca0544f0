"""The notebooks of the examples run, without Jupyter; their files are small and hold what their cells show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
MOST_BYTES = 60_000


def run(*words):
    command = [sys.executable, ROOT / "scripts" / "run_notebooks.py", *words]
    return subprocess.run(list(map(str, command)), text=True, capture_output=True, timeout=300)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(notebook, tmp_path):
    """In a copy, so that what this run shows is looked at as well."""
    kept = json.loads(notebook.read_text())
    assert len(notebook.read_bytes()) < MOST_BYTES and (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    copy = tmp_path / notebook.name
    copy.write_bytes(notebook.read_bytes())
    done = run("--write", copy)
    assert done.returncode == 0, done.stdout + done.stderr
    for before, after in zip(kept["cells"], json.loads(copy.read_text())["cells"], strict=True):
        assert before["source"] == after["source"]
        if before["cell_type"] == "code":
            shown = [[sorted(each.get("data", ())) for each in cell["outputs"]] for cell in (before, after)]
            assert shown[0] == shown[1], "run scripts/run_notebooks.py --write"


def test_a_value_is_shown_as_html_where_it_has_such_a_form():
    notebook = json.loads((ROOT / "examples" / "notebooks" / "looking_inside.ipynb").read_text())
    shown = [each["data"] for cell in notebook["cells"] for each in cell.get("outputs", ()) if "data" in each]
    assert any("<svg" in "".join(data["text/html"]) for data in shown)


def test_a_cell_that_fails_is_named(tmp_path):
    broken = tmp_path / "broken.ipynb"
    cells = [{"cell_type": "code", "source": [source]} for source in ("a = 1", "a / 0")]
    broken.write_text(json.dumps({"cells": cells}))
    done = run(broken)
    assert done.returncode != 0 and "broken.ipynb, cell 2" in done.stderr and "ZeroDivisionError" in done.stderr


def test_the_list_of_examples_names_them():
    text = (ROOT / "examples" / "README.md").read_text()
    assert len(NOTEBOOKS) == 3 and all(f"`notebooks/{path.name}`" in text for path in NOTEBOOKS)
