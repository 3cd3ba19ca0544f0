"""spec annotations.md, section 9: operators of a shared library."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import abele
import poptorch
import pytest
import torch
from torch.utils.cpp_extension import include_paths

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "examples" / "cpp" / "custom_op" / "cube.cpp"
X = torch.linspace(-1, 1, 6)


def compiled(folder, source, name):
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = folder / f"lib{name}.so"
    home = Path(abele.__file__).parent
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{ROOT / 'include'}", f"-I{ROOT / 'src'}"]
    flags += [f"-I{path}" for path in include_paths()]
    command = [compiler, *flags, str(source), "-o", str(library), f"-L{home}", "-labele", f"-Wl,-rpath,{home}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return str(library)


@pytest.fixture(scope="module")
def cube(tmp_path_factory):
    library = compiled(tmp_path_factory.mktemp("cube"), SOURCE, "cube")
    ctypes.cdll.LoadLibrary(library)
    return library


class Model(torch.nn.Module):
    def __init__(self, **attributes):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(1, 2, 6))
        self.attributes = attributes

    def forward(self, x):
        y = poptorch.custom_op([x * self.weight], "Cube", "example.ops", 1, [x], attributes=self.attributes)[0]
        return y, poptorch.identity_loss(y, "sum")


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
def test_operator_of_a_library(cube):
    model = Model(scale=2.0)
    weight = model.weight.detach().clone()
    executor = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=1.0))
    y, _ = executor(X)
    assert torch.allclose(y, 2 * (X * weight) ** 3)
    assert torch.allclose(model.weight, weight - 6 * (X * weight) ** 2 * X)
    for wrong in (Model(scale=2), Model(scale=[2.0])):  # of another type than the operator reads
        with pytest.raises(poptorch.Error):
            poptorch.inferenceModel(wrong)(X)


@pytest.mark.spec("annotations/9", names=["poptorch.custom_op"])
def test_a_second_registration_is_an_error(cube, tmp_path):
    copy = tmp_path / "libcopy.so"
    shutil.copy(cube, copy)
    ctypes.cdll.LoadLibrary(str(copy))
    with pytest.raises(poptorch.Error, match="registered 2 times"):
        poptorch.inferenceModel(Model())(X)
