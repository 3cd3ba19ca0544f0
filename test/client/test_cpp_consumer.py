"""A C++ project outside the tree builds against the installed package and trains a pipeline with it."""

import importlib.util
import os
import re
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


WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]


def compilers() -> list[str]:
    """g++ and clang++, by these names or with the numbers of releases, as distributions install them."""
    names = [f"{kind}-{number}" for kind, oldest in (("g++", 12), ("clang++", 16)) for number in range(oldest, 30)]
    return [name for name in ["g++", "clang++", *names] if shutil.which(name)]


@pytest.mark.parametrize("standard", ["c++20", "c++2b"])
@pytest.mark.parametrize("compiler", compilers())
def test_headers_have_no_warnings(tmp_path, compiler, standard):
    """Programs may include abele/abele.h before LibTorch's headers, or without them."""
    program = tmp_path / "program.cpp"
    program.write_text("#include <abele/abele.h>\n\nint main() { return 0; }\n")
    language = [f"-std={standard}", *WARNINGS, f"-I{ROOT / 'include'}"]
    run(compiler, "-fsyntax-only", *language, str(program))


@pytest.mark.parametrize("standard", ["c++20", "c++23"])
def test_a_program_has_no_warnings_of_our_headers(standard):
    """A program that uses the templates; LibTorch's own headers are system headers."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    include = Path(importlib.util.find_spec("torch").origin).parent / "include"
    torch = ["-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")]
    language = [f"-std={standard}", *WARNINGS, f"-I{ROOT / 'include'}", *torch]
    run("g++", "-fsyntax-only", *language, str(CONSUMER / "consumer.cpp"))


@pytest.mark.skipif(built_tree() is None, reason="no C++ build folder under build/: ./dev build makes one")
@pytest.mark.skipif(tool("cmake") is None, reason="cmake is not installed")
def test_another_release_of_libtorch_is_refused(tmp_path):
    cmake, prefix, torch = tool("cmake"), tmp_path / "prefix", tmp_path / "torch"
    run(cmake, "--install", str(built_tree()), "--prefix", str(prefix), "--component", "cpp")
    torch.mkdir()
    (torch / "TorchConfig.cmake").write_text("set(TORCH_LIBRARIES torch)\n")
    version = 'set(PACKAGE_VERSION "1.9.1")\nset(PACKAGE_VERSION_COMPATIBLE TRUE)\n'
    (torch / "TorchConfigVersion.cmake").write_text(version)
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if tool("ninja") else []
    words = [cmake, "-S", str(CONSUMER), "-B", str(tmp_path / "build"), f"-DCMAKE_PREFIX_PATH={prefix}"]
    done = subprocess.run([*words, f"-DTorch_DIR={torch}", *generator], text=True, capture_output=True, check=False)
    assert done.returncode != 0
    message = " ".join(done.stderr.split())
    assert re.search(r"this Abele was built with LibTorch [0-9.]+\. found LibTorch 1\.9\.1 in", message), done.stderr


def configure(libtorch, build):
    """CMake in a tree that has no Python."""
    words = [tool("cmake"), "-S", ROOT, "-B", build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"]
    words += [f"-DABELE_LIBTORCH={libtorch}", "-DABELE_TESTS=OFF", "-DCMAKE_DISABLE_FIND_PACKAGE_Python=ON"]
    return subprocess.run(list(map(str, words)), text=True, capture_output=True, check=False)


@pytest.mark.skipif(not (tool("cmake") and tool("ninja")), reason="cmake and ninja are not installed")
def test_libtorch_without_python_is_enough(tmp_path):
    """Only configured: compiling all takes minutes. The folder is that of LibTorch's zip: include, lib and share."""
    package = Path(importlib.util.find_spec("torch").origin).parent
    libtorch = tmp_path / "libtorch"
    libtorch.mkdir()
    for name in ("include", "lib", "share"):
        (libtorch / name).symlink_to(package / name)
    done = configure(libtorch, tmp_path / "build")
    assert done.returncode == 0, done.stderr
    commands = run(tool("ninja"), "-C", str(tmp_path / "build"), "-t", "commands")
    assert f"{libtorch}/lib" in commands and "-o tools/abele-run" in commands
    assert not re.search(r"-l(tor)?python|torch_python|_abele\.|Python\.h|src/bind|example_", commands)


@pytest.mark.skipif(not (tool("cmake") and tool("ninja")), reason="cmake and ninja are not installed")
def test_a_folder_that_is_no_libtorch_is_refused(tmp_path):
    done = configure(tmp_path, tmp_path / "build")
    assert done.returncode != 0
    assert f"none in {tmp_path}" in done.stderr and "-DABELE_LIBTORCH=FOLDER" in done.stderr
