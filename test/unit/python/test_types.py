"""The packages' types: type checkers accept users' programs and find mistakes, and stubs match the modules."""

import ast
import importlib
import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import abele
import pytest

PYTHON = Path(abele.__file__).parents[1]
TYPED = Path(__file__).parent / "typed"
# keras_...: only if Keras is installed. CI does not have it.
HAS_KERAS = importlib.util.find_spec("keras") is not None
MISTAKES = TYPED / "mistakes.py"
PROGRAMS = sorted(
    path for path in TYPED.glob("*.py") if path != MISTAKES and (HAS_KERAS or not path.name.startswith("keras_"))
)


def mypy(*files, folder):
    """(file, line) of each error, and the text."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--cache-dir", folder, *files]
    env = {**os.environ, "MYPYPATH": str(PYTHON)}
    done = subprocess.run(map(str, command), env=env, cwd=folder, text=True, capture_output=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return {(Path(f).name, int(n)) for f, n in re.findall(r"^(.+?):(\d+): error", done.stdout, re.M)}, done.stdout


def pyright(*files, folder):
    """The same for pyright, in the form of its PyPI package."""
    pytest.importorskip("basedpyright")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(PYTHON)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", folder / "pyrightconfig.json"]
    command += ["--pythonpath", sys.executable, *files]
    done = subprocess.run(map(str, command), cwd=folder, text=True, capture_output=True)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = [each for each in json.loads(done.stdout)["generalDiagnostics"] if each["severity"] == "error"]
    lines = [(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in found]
    return set(lines), "\n".join(f"{line}: {each['message']}" for line, each in zip(lines, found, strict=True))


@pytest.fixture(scope="module", params=[mypy, pyright])
def found(request, tmp_path_factory):
    """The messages of one run of a checker over all programs. A run reads torch, which takes most of its time."""
    return request.param(*PROGRAMS, MISTAKES, folder=tmp_path_factory.mktemp("checked"))


def test_programs_of_users_are_right(found):
    lines, text = found
    assert not {line for line in lines if line[0] != MISTAKES.name}, text


def test_mistakes_are_found(found):
    lines, text = found
    written = MISTAKES.read_text().splitlines()
    wrong = {(MISTAKES.name, number) for number, line in enumerate(written, 1) if line.endswith("# wrong")}
    assert len(wrong) > 15
    assert {line for line in lines if line[0] == MISTAKES.name} == wrong, text


def test_the_programs_run(tmp_path):
    """Runs all programs in one process, one after the other."""
    program = "import runpy, sys\nfor path in sys.argv[1:]:\n    runpy.run_path(path, run_name='__main__')"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(PYTHON), *sys.path])}
    subprocess.run([sys.executable, "-c", program, *PROGRAMS], cwd=tmp_path, env=env, check=True, timeout=300)


def parameters_of_stub(function):
    a = function.args
    named = [arg.arg for arg in (*a.posonlyargs, *a.args)]
    rest = [f"*{a.vararg.arg}"] if a.vararg else []
    return named + rest + [arg.arg for arg in a.kwonlyargs] + ([f"**{a.kwarg.arg}"] if a.kwarg else [])


def parameters_of(function):
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(each.kind, "") + each.name for each in inspect.signature(function).parameters.values()]


# Attributes that an executor takes from the model that it wraps.
OF_THE_MODEL = {"parameters", "named_parameters", "state_dict", "train", "eval", "rng_state"}


@pytest.mark.parametrize("name", ["_option_setters"])
def test_stubs_have_the_parameters_of_what_they_stand_for(name):
    module = importlib.import_module(f"abele.{name}")
    checked = 0
    for node in ast.parse((PYTHON / "abele" / f"{name}.pyi").read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        cls = getattr(module, node.name)
        for member in node.body:
            if not isinstance(member, ast.FunctionDef) or member.name in OF_THE_MODEL:
                continue
            actual = inspect.getattr_static(cls, member.name)
            if not isinstance(actual, property):
                assert parameters_of_stub(member) == parameters_of(getattr(cls, member.name)), member.name
            checked += 1
    assert checked >= 8


def test_each_name_of_the_stub_is_there():
    stubbed = set(re.findall(r" as (\w+)$", (PYTHON / "abele" / "__init__.pyi").read_text(), re.M))
    assert all(hasattr(abele, each) for each in stubbed)
    assert stubbed == set(abele.__all__)


@pytest.mark.parametrize("name", ["abele", "poptorch"])
def test_the_packages_are_typed(name):
    assert (PYTHON / name / "py.typed").exists()


def test_setters_say_their_ranges():
    text = (PYTHON / "abele" / "_option_setters.pyi").read_text()
    setters = re.findall(r"    def gradientAccumulation\(.*?(?=\n    def )", text, re.S)
    assert len(setters) == 1 and "Allowed: >= 1" in setters[0] and "Unit: micro-batches" in setters[0]
