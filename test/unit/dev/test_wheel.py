"""What a wheel says of itself. scripts/try_wheel.py tries a whole one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
pytest.importorskip("scikit_build_core")


def test_a_wheel_asks_for_the_release_of_torch_that_it_is_built_with(tmp_path):
    code = "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as prepare; "
    code += "prepare(sys.argv[1], {})"
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stdout + done.stderr
    (metadata,) = tmp_path.glob("abele-*.dist-info/METADATA")
    head = metadata.read_text().partition("\n\n")[0]
    numbers = re.findall(r"ABELE_VERSION_\w+ (\d+)", (ROOT / "include" / "abele" / "version.h").read_text())
    assert f"Version: {'.'.join(numbers)}\n" in head
    release = ".".join(torch.__version__.split(".")[:2])
    assert f"Requires-Dist: torch=={release}.*" in head.splitlines()
