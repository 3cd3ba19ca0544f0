#!/usr/bin/env python3
"""Checks who includes whom, and which Python package imports which: the tables in docs/architecture.md. Finds circles
of imports among Python modules, also those inside functions. Also warns of long files.

    check_layers.py [ROOT]      exit status 1 when a rule is broken

A rule is data: a folder, what it may include besides itself and the standard library, and whether LibTorch is one of
these. The longest matching folder counts.
"""

import ast
import re
import sys
from pathlib import Path

TORCH_FREE, TORCH = False, True
# What compiles and runs a program, below what a user sees.
ENGINE = "base ir capture passes schedule plan split exe exe/build runtime kernels memory collective device"
LAYERS = {
    # folder                 may include                                  LibTorch
    "src/base": ("abele/error.h abele/errors.def", TORCH_FREE),
    "src/registry": ("base", TORCH_FREE),
    "src/ir": ("base", TORCH_FREE),
    "src/capture": ("base ir", TORCH),
    "src/passes": ("base ir", TORCH_FREE),
    "src/schedule": ("base ir", TORCH_FREE),
    "src/plan": ("base ir schedule", TORCH_FREE),
    "src/split": ("base ir schedule plan", TORCH_FREE),
    "src/exe": ("base", TORCH_FREE),
    "src/exe/build": ("base ir schedule plan exe", TORCH_FREE),
    "src/runtime": ("base exe", TORCH_FREE),
    "src/kernels": ("base", TORCH),
    "src/memory": ("base", TORCH),
    "src/collective": ("base", TORCH),
    # Every kind of device is a folder below the contract, which is all that the rooms above see of it.
    "src/device": ("base exe runtime memory", TORCH),
    "src/device/null": ("base exe runtime", TORCH_FREE),
    "src/device/null/tensors": ("base exe runtime device device/null kernels memory", TORCH),
    # What devices share that run ATen's operators.
    "src/device/aten": ("base exe runtime device kernels memory", TORCH),
    # What devices share that work together with other processes.
    "src/device/processes": ("base exe runtime collective device device/aten kernels memory", TORCH),
    "src/device/cpu": ("base exe runtime collective device device/aten device/processes kernels memory", TORCH),
    "src/device/accelerator": ("base exe runtime collective device device/aten device/processes kernels memory", TORCH),
    # operators/ are LibTorch operators like ATen's: the capture records them, the devices look them up by name.
    "src/operators": (
        "base ir capture/annotate.h capture/capture_body.h capture/elements_text.h include kernels/basic.h "
        "kernels/constants.h kernels/gelu_loops.h kernels/norm_loops.h kernels/operator_lookup.h kernels/parallel.h "
        "kernels/products.h kernels/convolutions.h",
        TORCH,
    ),
    # From the user's options to a program that runs, each over those before it.
    "src/options": ("base include schedule/schedules.def", TORCH_FREE),
    "src/compile": (f"{ENGINE} options include operators/graph_run.h", TORCH),
    "src/processes": ("base schedule collective device compile", TORCH),
    "src/session": (f"{ENGINE} compile processes", TORCH),
    # Parts of a model. None of these knows the model.
    "src/report": ("base exe schedule plan options compile session include", TORCH),
    "src/verification": ("base ir capture device compile session include", TORCH),
    "src/calls": ("base registry options compile include", TORCH),
    "src/files": ("base exe memory device options compile session calls", TORCH),
    "src/data": ("base capture kernels options compile calls files include", TORCH),
    "src/modules": ("base capture options compile files include", TORCH),
    "src/optimizer": ("base options compile session modules include", TORCH),
    "src/model": (
        f"{ENGINE} registry options compile session report verification calls files modules optimizer include",
        TORCH,
    ),
    "src/api": (
        "base schedule plan registry capture/annotate.h options compile processes session report calls files data "
        "modules optimizer model include",
        TORCH,
    ),
    # bind/ turns Python's annotations into capture's; it has no logic of its own.
    "src/bind": (
        "base registry options compile processes session report verification calls files data modules optimizer model "
        "include capture/annotate.h ir/text.h",
        TORCH,
    ),
    "include": ("", TORCH_FREE),
    "tools": (f"{ENGINE} registry", TORCH_FREE),
    "tools/linked": ("include", TORCH),
    "test/unit/base": ("base", TORCH_FREE),
    "test/unit/registry": ("base registry", TORCH_FREE),
    "test/unit/ir": ("base ir", TORCH_FREE),
    "test/unit/passes": ("base ir passes", TORCH_FREE),
    "test/unit/schedule": ("base ir passes schedule plan split", TORCH_FREE),
    "test/unit/plan": ("base ir passes schedule plan", TORCH_FREE),
    "test/unit/split": ("base ir passes schedule plan split", TORCH_FREE),
    "test/unit/exe": ("base ir passes schedule plan exe exe/build", TORCH_FREE),
    "test/unit/options": ("base options include", TORCH_FREE),
    "test/unit/runtime": ("base ir passes schedule plan exe exe/build runtime device/null", TORCH_FREE),
    "test/unit/collective": ("base collective", TORCH),
    "test/unit/kernels": ("base kernels", TORCH),
    "test/unit/device": ("base ir passes plan exe exe/build runtime device memory", TORCH),
    "test/unit/device/accelerator": (
        "base ir passes schedule plan exe exe/build runtime collective device device/accelerator",
        TORCH,
    ),
    "test/unit/device/cpu": ("base exe runtime kernels memory device/aten device/cpu", TORCH),
}
# Python package -> which of the others it may import.
PACKAGES = {
    "abele": "",
    "poptorch": "abele",
    "popart": "",
    "popdist": "abele poptorch",
    "libpvti": "abele",
    "gcipuinfo": "abele",
    "pva": "abele",
}
TORCH_FOLDERS = ("ATen/", "c10/", "torch/", "caffe2/", "pybind11/")
# Seconds of compile time each, for every unit that sees them.
UMBRELLAS = ("ATen/ATen.h", "torch/torch.h", "torch/extension.h", "torch/all.h")
UMBRELLAS_ALLOWED = ("test/", "examples/", "bench/")
LONGEST_FILE = 600
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
# In C++: Python registers with the native module what it needs.
PYTHON_IMPORT = re.compile(rf'[iI]mport\w*\s*\(\s*"({"|".join(PACKAGES)})\b')


def layer_of(path: str) -> str | None:
    """The longest folder of the table that holds this file."""
    return max((folder for folder in LAYERS if path.startswith(folder + "/")), key=len, default=None)


def folder_of_include(included: str) -> str | None:
    """The folder of src/ that an #include of the project names; None for other headers."""
    if included.startswith("abele/"):
        return "include"
    folder = included.rpartition("/")[0]
    return folder if f"src/{folder.split('/')[0]}" in LAYERS else None


def findings_of(path: str, text: str) -> list[str]:
    """The errors in the includes of one file."""
    found = []
    layer = layer_of(path)
    for match in INCLUDE.finditer(text):
        included = match.group(1)
        at = f"{path}:{text.count(chr(10), 0, match.start(1)) + 1}"
        if included in UMBRELLAS and not path.startswith(UMBRELLAS_ALLOWED):
            found.append(f"{at}: includes {included}; take single headers (ATen/ops/x.h, ATen/core/Tensor.h)")
        if layer is None:
            continue
        allowed, torch = LAYERS[layer]
        if included.startswith(TORCH_FOLDERS) and torch is TORCH_FREE:
            found.append(f"{at}: {layer} is torch-free and includes {included}")
        target = folder_of_include(included)
        if target is None or f"src/{target}" == layer or target == layer:
            continue
        names = allowed.split()
        if target not in names and included not in names:
            found.append(f"{at}: {layer} may not include {target} ({included}); allowed: {allowed or 'nothing'}")
    return found


def imports_of(text: str) -> list[tuple[int, str]]:
    """(line, package) of every absolute import in Python source, also those by importlib's functions."""
    found = []
    for node in ast.walk(ast.parse(text)):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call) and node.args:
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            first = node.args[0].values[0] if isinstance(node.args[0], ast.JoinedStr) else node.args[0]
            if function in ("import_module", "__import__", "find_spec") and isinstance(first, ast.Constant):
                names = [str(first.value)]
        found += [(node.lineno, name.partition(".")[0]) for name in names]
    return sorted(found)


def package_findings_of(path: str, text: str) -> list[str]:
    """The errors in the imports of one file of a Python package."""
    package = path.split("/")[1]
    allowed = PACKAGES.get(package, "").split()
    return [
        f"{path}:{line}: {package} may not import {name}; allowed: {', '.join(allowed) or 'nothing'}"
        for line, name in imports_of(text)
        if name in PACKAGES and name != package and name not in allowed
    ]


def statements_of(node: ast.AST) -> list[ast.AST]:
    """The nodes of Python source that run, without what only type checkers read."""
    if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
        return []
    return [node, *(each for child in ast.iter_child_nodes(node) for each in statements_of(child))]


def modules_of(name: str, path: str, text: str, known: set[str]) -> set[str]:
    """Which of the known modules a module imports, also inside functions."""
    package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
    found = set()
    for node in statements_of(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            base = ".".join([*parts, *filter(None, [node.module])])
            members = [f"{base}.{alias.name}" for alias in node.names]
            found.update(each if each in known else base for each in members)
    return (found & known) - {name}


def circle_findings_of(texts: dict[str, str]) -> list[str]:
    """Circles of imports among the modules of our packages, whose texts these are by path."""
    paths = {path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")[7:]: path for path in texts}
    found, done = [], set()

    def visit(name: str, above: list[str]) -> None:
        if name in above:
            circle = [*above[above.index(name) :], name]
            found.append(f"{paths[name]}: a circle of imports: {' -> '.join(circle)}")
        elif name not in done:
            for each in sorted(modules_of(name, paths[name], texts[paths[name]], paths.keys())):
                visit(each, [*above, name])
            done.add(name)

    for name in sorted(paths):
        visit(name, [])
    return found


def native_findings_of(path: str, text: str) -> list[str]:
    """Imports of our own Python packages in C++."""
    return [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: the native module imports {match.group(1)}; let Python "
        "register what is needed of it"
        for match in PYTHON_IMPORT.finditer(text)
    ]


def main(root: Path) -> int:
    findings, warnings, modules = [], [], {}
    for top in ("src", "include", "tools", "test", "examples", "bench", "python", "scripts"):
        for file in sorted((root / top).rglob("*")):
            if file.suffix not in (".h", ".cc", ".def", ".py") or not file.is_file():
                continue
            path = file.relative_to(root).as_posix()
            text = file.read_text(errors="replace")
            if file.suffix in (".h", ".cc"):
                findings += findings_of(path, text)
                if top == "src":
                    findings += native_findings_of(path, text)
            if file.suffix == ".py" and top == "python":
                findings += package_findings_of(path, text)
                modules[path] = text
            num_lines = text.count("\n")
            if num_lines > LONGEST_FILE and "Generated by" not in text[:200]:
                warnings.append(f"{path}: {num_lines} lines, over {LONGEST_FILE}: split it, or say at its top why not")
    findings += circle_findings_of(modules)
    for line in warnings:
        print(f"warning: {line}")
    for line in findings:
        print(line)
    print(f"layers: {len(findings)} findings, {len(warnings)} warnings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]))
