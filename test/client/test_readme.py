"""The README's two programs compile and run as they are printed, and its figures are those of the reference."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMPATIBILITY = ROOT / "docs" / "compatibility.md"


def block(language):
    """The only block of that language."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) == 1
    return blocks[0]


def run(command, folder):
    done = subprocess.run(command, cwd=folder, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_learns(output):
    """Five losses, one a line, of which the last is the smallest."""
    losses = [float(line) for line in re.findall(r"^\d\.\d+$", output, re.M)]
    assert len(losses) == 5, output
    assert min(losses) == losses[-1] < losses[0]


def test_figures_and_links():
    counted = dict(re.findall(r"^\| (operators|module classes) \| (\d+) ", COMPATIBILITY.read_text(), re.M))
    for page in (ROOT / "README.md", ROOT / "docs" / "features.md"):
        said = re.search(r"(\d+) of torch's operators and (\d+) module classes", page.read_text())
        assert said.groups() == (counted["operators"], counted["module classes"]), page
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for target in re.findall(r"\]\(([^)#:]+)", text):
            assert (page.parent / target).exists(), target
    assert len((ROOT / "README.md").read_text().splitlines()) < 120


def test_python(tmp_path):
    (tmp_path / "train.py").write_text(block("python"))
    output = run([sys.executable, "train.py"], tmp_path)
    assert_learns(output)
    classes = re.search(r"^tensor\(\[(.*)\]\)$", output, re.M)
    assert len(classes.group(1).split(",")) == 8


def test_cpp(tmp_path):
    torch = Path(pytest.importorskip("torch").__file__).parent
    library = ROOT / "python" / "abele"
    (tmp_path / "train.cc").write_text(block("cpp"))
    command = ["g++", "-std=c++20", "-O0", "train.cc", "-o", "train"]
    command += [
        f"-I{ROOT / 'include'}",
        f"-I{ROOT / 'src'}",
    ]  # src/: base/error.h, which installing puts beside the others
    command += [f"-isystem{torch / path}" for path in ("include", "include/torch/csrc/api/include")]
    command += [f"-L{library}", f"-L{torch / 'lib'}", "-labele", "-ltorch", "-ltorch_cpu", "-lc10"]
    command += [f"-Wl,-rpath,{library}:{torch / 'lib'}"]
    run(command, tmp_path)
    assert_learns(run([tmp_path / "train"], tmp_path))
