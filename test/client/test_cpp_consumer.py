"""A C++ project outside the tree builds against the installed package and trains a pipeline with it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONSUMER = ROOT / "test" / "consumer"


def built_tree() -> Path | None:
    """The build folder whose library the tests use: ABELE_BUILD_DIR, else the newest under build/."""
    if "ABELE_BUILD_DIR" in os.environ:
        return Path(os.environ["ABELE_BUILD_DIR"])
    found = [library.parent for library in (ROOT / "build").glob("*/libabele_api.a")]
    return max(found, key=lambda folder: (folder / "libabele_api.a").stat().st_mtime, default=None)


def tool(name: str) -> str | None:
    """A program of the interpreter's environment, else of PATH."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)


def run(*command: str) -> str:
    """Output of a command that must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


@pytest.mark.skipif(built_tree() is None, reason="no C++ build folder under build/: ./dev build makes one")
@pytest.mark.skipif(tool("cmake") is None, reason="cmake is not installed")
def test_find_package_builds_and_trains(tmp_path):
    cmake, prefix, build = tool("cmake"), tmp_path / "prefix", tmp_path / "build"
    run(cmake, "--install", str(built_tree()), "--prefix", str(prefix), "--component", "cpp")
    installed = {path.relative_to(prefix).as_posix() for path in prefix.rglob("*")}
    assert "include/abele/abele.h" in installed
    assert not any("base" in Path(path).parts for path in installed if path.startswith("include/"))
    assert not any(ROOT.as_posix() in path.read_text() for path in prefix.rglob("*Targets*.cmake"))
    commands = {path.name for path in (prefix / "bin").iterdir()}
    programs = {path.stem for path in (ROOT / "tools").rglob("*.cc")}
    assert commands == programs >= {"abele", "abele-env", "abele-report", "gc-info", "gc-inventory"}
    command = str(prefix / "bin" / "abele")
    assert run(command, "--version").startswith("abele ")
    assert "a pipeline of two stages trains" in run(command, "env")
    assert "dce" in run(command, "opt", "--list-passes")
    refused = subprocess.run([command, "env", "--all"], stderr=subprocess.PIPE, text=True, check=False)
    assert refused.returncode == 1 and "E0901 tool-arguments: abele env takes no --all" in refused.stderr
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if tool("ninja") else []
    run(cmake, "-S", str(CONSUMER), "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}", *generator)
    run(cmake, "--build", str(build))
    output = run(str(build / "consumer"))
    assert "refused: E0703" in output
    assert "bubble" in output
