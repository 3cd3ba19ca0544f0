"""`except poptorch.Error` catches all errors that the packages raise: no plain assertion or builtin error is left."""

import ast
from pathlib import Path

import abele
import poptorch
import pytest
import torch

PACKAGES = Path(__file__).resolve().parents[3] / "python"
BUILTIN = {"AssertionError", "ValueError", "RuntimeError", "TypeError", "AttributeError"}
# Attributes that Python asks for by name must be missing in Python's own way; the worker's errors stay in its process;
# libpvti and popart stand for other libraries.
PROTOCOLS = {"__getattr__", "__getattribute__"}
ELSEWHERE = {"libpvti", "popart"}


def raised(tree, function=""):
    """Lines of assertions and of builtin errors that are raised."""
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.Assert):
            yield node.lineno
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and function not in PROTOCOLS:
            if getattr(node.exc.func, "id", "") in BUILTIN:
                yield node.lineno
        yield from raised(node, inner)


def modules():
    return [path for path in PACKAGES.rglob("*.py") if path.relative_to(PACKAGES).parts[0] not in ELSEWHERE]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGES)))
def test_no_module_raises_plain_errors(path):
    assert list(raised(ast.parse(path.read_text()))) == []


class Net(torch.nn.Module):
    def forward(self, x):
        return x


def wrong_calls(package):
    return [
        (AssertionError, lambda: package.inferenceModel(Net())()),
        (AssertionError, lambda: package.inferenceModel(Net())(torch.ones(1), torch.ones(1))),
        (AssertionError, lambda: package.inferenceModel(Net(), poptorch.Options().deviceIterations(2))(torch.ones(3))),
        (AssertionError, lambda: package.inferenceModel(Net()).getTensorNames()),
        (AssertionError, lambda: poptorch.Options().deviceIterations("2")),
        (AssertionError, lambda: poptorch.Options().useIpuId("2")),
        (ValueError, lambda: poptorch.Options().inputReplicaGrouping(3, poptorch.CommGroupType.Consecutive)),
        (AttributeError, lambda: package.inferenceModel(Net()).options.deviceIterations(3)),
        (RuntimeError, lambda: poptorch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1).load_state_dict({})),
    ]


@pytest.mark.parametrize("package", [poptorch, abele])
@pytest.mark.parametrize("index", range(9))
def test_errors_are_ours_and_what_they_were(package, index):
    builtin, call = wrong_calls(package)[index]
    with pytest.raises(poptorch.Error) as found:
        call()
    assert isinstance(found.value, builtin) or index == 0  # a missing argument was ours before
    assert found.value.message and found.value.type
