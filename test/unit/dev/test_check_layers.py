"""check_layers.py finds what the tables of folders and packages forbid, and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def check(tmp_path, path, text):
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "check_layers.py", tmp_path], text=True, capture_output=True
    )


@pytest.mark.parametrize(
    ("path", "include", "finding"),
    [
        ("src/ir/graph.cc", "ATen/core/Tensor.h", "src/ir is torch-free"),
        ("src/plan/plan.cc", "passes/pass.h", "src/plan may not include passes"),
        ("src/exe/executable.cc", "exe/build/build.h", "src/exe may not include exe/build"),
        ("src/runtime/runtime.cc", "ir/graph.h", "src/runtime may not include ir"),
        ("src/device/null/null.cc", "device/cpu/cpu_backend.h", "may not include device/cpu"),
        ("src/device/backends.cc", "device/cpu/cpu_backend.h", "may not include device/cpu"),
        ("src/session/session.cc", "device/cpu/cpu_backend.h", "may not include device/cpu"),
        ("src/compile/compiler.cc", "device/null/null_backend.h", "may not include device/null"),
        ("src/model/model.cc", "device/gpu/gpu_backend.h", "may not include device/gpu"),
        ("src/api/model.cc", "device/backend.h", "may not include device"),
        ("src/kernels/copy.cc", "ATen/ATen.h", "take single headers"),
        ("src/bind/module.cc", "capture/capture.h", "src/bind may not include capture"),
        ("include/abele/model.h", "torch/torch.h", "include is torch-free"),
        ("tools/abele-opt.cc", "c10/core/Device.h", "tools is torch-free"),
    ],
)
def test_breach(tmp_path, path, include, finding):
    result = check(tmp_path, path, f'// First line.\n#include "{include}"\n')
    assert result.returncode == 1
    assert f"{path}:2: " in result.stdout
    assert finding in result.stdout


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("src/ir/print.cc", "ir/graph.h"),
        ("src/ir/print.cc", "base/type.h"),
        ("src/ir/print.cc", "vector"),
        ("src/exe/build/build.cc", "plan/plan.h"),
        ("src/session/session.cc", "device/backend.h"),
        ("src/device/cpu/cpu_backend.h", "device/backend.h"),
        ("src/model/core.h", "abele/model.h"),
        ("src/bind/annotate.cc", "capture/annotate.h"),
        ("src/capture/capture.cc", "ATen/core/Tensor.h"),
        ("test/unit/api/model_test.cc", "torch/torch.h"),
    ],
)
def test_allowed(tmp_path, path, include):
    result = check(tmp_path, path, f"#include <{include}>\n")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("path", "line", "finding"),
    [
        ("python/abele/_files.py", "from poptorch import wrapping", "abele may not import poptorch"),
        ("python/abele/_files.py", "import torch, poptorch.optim", "abele may not import poptorch"),
        ("python/abele/keras/_step.py", "def step():\n    import poptorch", "abele may not import poptorch"),
        ("python/abele/_files.py", 'importlib.import_module("poptorch")', "abele may not import poptorch"),
        ("python/abele/_files.py", 'importlib.import_module(f"poptorch.{name}")', "abele may not import poptorch"),
        ("python/libpvti/__init__.py", "import poptorch", "libpvti may not import poptorch"),
        ("python/pva/_trace.py", "import poptorch", "pva may not import poptorch"),
        ("src/bind/errors.cc", 'py::module_::import("poptorch._errors")', "the native module imports poptorch"),
        ("src/bind/errors.cc", 'PyImport_ImportModule("abele")', "the native module imports abele"),
    ],
)
def test_wrong_import(tmp_path, path, line, finding):
    result = check(tmp_path, path, line + "\n")
    assert result.returncode == 1
    assert f"{path}:{line.count(chr(10)) + 1}: " in result.stdout
    assert finding in result.stdout


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("python/abele/_files.py", "from . import poptorch"),
        ("python/abele/structures.py", "from poptorch_geometric import registerCustomArgParsers"),
        ("python/abele/_logging.py", 'logger = logging.getLogger("poptorch::python")'),
        ("python/poptorch/_policy.py", "from abele import wrapping"),
        ("python/popdist/poptorch.py", "import poptorch"),
        ("src/bind/module.cc", 'module.doc() = "Use the packages poptorch or abele."'),
    ],
)
def test_right_import(tmp_path, path, line):
    result = check(tmp_path, path, line + "\n")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("line", "is_circle"),
    [
        ("from . import _files", True),
        ("from ._files import read", True),
        ("def read():\n    from abele._files import read", True),
        ("if TYPE_CHECKING:\n    from ._files import read", False),
        ("from . import enums", False),
    ],
)
def test_circle_of_imports(tmp_path, line, is_circle):
    folder = tmp_path / "python" / "abele"
    folder.mkdir(parents=True)
    (folder / "_files.py").write_text("from . import _native\n")
    (folder / "enums.py").write_text("")
    result = check(tmp_path, "python/abele/_native.py", line + "\n")
    assert result.returncode == is_circle
    assert ("a circle of imports: abele._files -> abele._native -> abele._files" in result.stdout) == is_circle


def test_long_file_is_a_warning(tmp_path):
    result = check(tmp_path, "src/ir/long.cc", "\n" * 601)
    assert result.returncode == 0
    assert "warning: src/ir/long.cc: 601 lines" in result.stdout
