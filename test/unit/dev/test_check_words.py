"""check_words.py finds wording that makes readers stumble, in comments and docstrings, on new lines only."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "scripts"))

import check_words  # noqa: E402


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.h", "/// Is the graph valid?\nbool f();\n", [1]),
        ("a.h", "/// Returns true if the graph is valid.\nbool f();\n", []),
        ("a.h", "int64_t bytes = 0;  // of a device\n", [1]),
        ("a.h", "// The bytes\n// of a device.\n", []),
        ("a.h", "// Nobody reads it.\n// A second one is made anew.\n", [1, 2]),
        ("a.cc", 'const char* text = "nobody";  // the name\n', []),
        ("a.cc", "// A tensor that is no parameter.\n", [1]),
        ("a.cc", "// There is no parameter. It is no longer used.\n", []),
        ("a.def", "ROW(a, 1)  // shall hold all else\n", [1]),
        ("a.py", 'def f():\n    """Does it run?"""\n    return "Does it run?"\n', [2]),
        ("a.py", 'nobody = "anew"  # the name\n', []),
    ],
)
def test_wording(name, text, lines):
    assert [line for line, _ in check_words.findings(name, text)] == lines


def run(folder, *arguments):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(git, cwd=folder, check=True, capture_output=True)


def test_reads_the_lines_that_a_branch_adds(tmp_path):
    run(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "old.h").write_text("// Nobody reads it.\n")
    run(tmp_path, "add", ".")
    run(tmp_path, "commit", "-qm", "first")
    run(tmp_path, "checkout", "-qb", "other")
    (tmp_path / "old.h").write_text("// Nobody reads it.\n// It is made anew.\n")
    run(tmp_path, "commit", "-qam", "second")
    (tmp_path / "new.py").write_text("# Is it new?\n")

    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_words.py"], cwd=tmp_path, text=True, capture_output=True
    )
    assert [line.split(": ")[0] for line in done.stdout.splitlines()] == ["new.py:1", "old.h:2", "words"]
    assert done.returncode == 1
