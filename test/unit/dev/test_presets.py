"""Every preset configures, also those that few people build, and each library that a target names is a target."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRESETS = {
    preset["name"]: preset["cacheVariables"]
    for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    if not preset.get("hidden")
}


def tool(name):
    """A program of the environment that runs this test, or of the machine."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


@pytest.mark.parametrize("name", PRESETS)
def test_it_configures(name, tmp_path):
    command = [tool("cmake"), "--preset", name, "-B", tmp_path, "--no-warn-unused-cli"]
    command += [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}"]
    compiler = PRESETS[name].get("CMAKE_CXX_COMPILER")
    if compiler and not tool(compiler):
        command.append("-DCMAKE_CXX_COMPILER=c++")  # nothing is compiled
    done = subprocess.run(command, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    # CMake takes a name that no target has for a library of the machine, and the linker would look for it.
    assert not set(re.findall(r"-l(abele\w*)", (tmp_path / "build.ninja").read_text()))
