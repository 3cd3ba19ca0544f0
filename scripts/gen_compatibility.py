#!/usr/bin/env python3
"""Writes the tables of docs/compatibility.md: the state of every public name of PopTorch, and of torch's operators.

A name works, is accepted without effect, or is refused. What src/options/options.json calls a hint never works.

Usage: gen_compatibility.py [--spec FILE --walk FILE]    runs the tests that say so, or reads what they wrote
       gen_compatibility.py --cpp                        renews the column for C++ only, from the headers
       gen_compatibility.py --check                      the page lists every name, and claims no C++ name that is gone

FILE are what `pytest test/spec` and `pytest test/parity/test_walk.py` write when ABELE_SPEC_JSON and ABELE_WALK_JSON
name a file.
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "compatibility.md"
BY_HAND = re.compile(r"^<!-- Written by hand. -->$.*?^<!-- End. -->$", re.MULTILINE | re.DOTALL)
# error.h includes base/error.h, which is installed with it.
HEADERS = [*sorted((ROOT / "include" / "abele").glob("*.h")), ROOT / "src" / "base" / "error.h"]

# Names that have another form in C++. Others are looked up as they are.
CPP = {
    "poptorch.BeginBlock": "beginBlock",
    "poptorch.identity_loss": "identityLoss",
    "poptorch.isRunningOnIpu": "isRunningOnDevice",
    "poptorch.PoplarExecutor": "TrainingModel",
    "PoplarExecutor.__call__": "operator()",
    "optimizer.loss_scaling": "loss_scaling",
    "poptorch.enums": "OutputMode",
    "poptorch.options": "Options",
    "poptorch.optim": "optim",
    "poptorch.profiling": "abele::profiling",
    "profiling.Channel.tracepoint": "tracepoint",
    "profiling.Channel.instrument": "instrument",
    "poptorch.__version__": "ABELE_VERSION",
    "PoplarExecutor.compilationTime": "report",
    "poptorch.ipu_print_tensor": "printTensor",
    "poptorch.set_available_memory": "setAvailableMemory",
    "poptorch.for_loop": "forLoop",
    "poptorch.dynamic_slice": "dynamicSlice",
    "poptorch.dynamic_update": "dynamicUpdate",
    "poptorch.ctc_beam_search_decoder": "ctcBeamSearchDecoder",
    "poptorch.CPU": "HostCall",
    "poptorch.custom_op": "customOp",
    "poptorch.load": "loadTrainingModel",
    "poptorch.Error": "UserError",
    "poptorch.RecoverableError": "DeviceError",
    "poptorch.UnrecoverableError": "DeviceError",
    "PoplarExecutor.load_state_dict": "loadStateDict",
    "PoplarExecutor.state_dict": "stateDict",
    "PoplarExecutor.rng_state": "rngState",
    "Error.type": "code",
    "Error.location": "context",
    "Error.recovery_action": "recoveryAction",
    "optim.VariableAttributes": "VariableAttributes",
    "optimizer.state_dict": "optimizerState",
    "optimizer.get_state_dict": "optimizerState",
    "optimizer.load_state_dict": "setOptimizerState",
    "optimizer.set_state_dict": "setOptimizerState",
    "Options.clone": "Options(const Options& other)",
    "Options.from_json": "fromJson",
    "Options.toDict": "toJson",
    "Options._Popart": "Popart",
    "_Popart.options": "get",
    "Distributed.processId": "distributed_process_id",
    "Distributed.numProcesses": "num_distributed_processes",
    "Options.checkIsFrozen": "isFrozen",
    "DataLoader.combinedBatchSize": "combinedBatchSize",
}
# Names without a C++ form, and why.
OBJECTS = "it is about Python's objects"
PYTHON_ONLY = {
    "poptorch.ConfigFileError": "an exception class; in C++ E0702 names the line",
    "poptorch.BlockId": "an alias of str",
    "poptorch.BlockFunction": "wraps Python functions; in C++ Block inside of them",
    "poptorch.removeBlocks": "unwraps Python modules; in C++ placeModules with an empty list",
    "poptorch.LegacyBeginBlockFn": "wraps Python functions",
    "poptorch.module_repr": OBJECTS,
    "poptorch.print": "Python's print during capture",
    "poptorch.ops": "a module object",
    "poptorch.Attribute": "strings for Python's tracer; without effect",
    "poptorch.set_overlap_for_input": "a hint without effect, checked by Python's executor",
    "poptorch.set_overlap_for_output": "a hint without effect, checked by Python's executor",
    "poptorch.accessAttributes": OBJECTS,
    "poptorch.flattenTensorStructure": "nested Python structures; in C++ those of structure.h",
    "poptorch.reconstructTensorStructure": "nested Python structures; in C++ CompiledModel::call",
    "poptorch.ATTR_PREFIX": OBJECTS,
    "poptorch.attributes_lists": OBJECTS,
    "poptorch.createPoptorchError": "makes a Python exception",
    "poptorch.getIpuTensorId": OBJECTS,
    "poptorch.importPoptorchMetadataFromFile": "unpickles Python objects",
    "poptorch.ICustomArgParser": "nested Python structures",
    "poptorch.registerCustomArgParser": "nested Python structures",
    "poptorch.registerGeometricCustomArgParsers": "classes of a Python package",
    "poptorch.testing": OBJECTS,
    "poptorch.poptorch_core": "a module object",
    "poptorch.poptorchAtExit": "the interpreter's end",
    "poptorch.logger": "Python's logging",
    "Options.set": "attributes of a Python object; in C++ setters",
    "Options.createOrSet": "attributes of a Python object; in C++ setters",
    "Options.exists": "attributes of a Python object; in C++ std::optional",
    "Options.deleteIfExists": "attributes of a Python object",
    "testing.allclose": OBJECTS,
    "ICustomArgParser.yieldTensors": "nested Python structures",
    "ICustomArgParser.reconstruct": "nested Python structures",
    "PoplarExecutor.named_parameters": "a wrapped nn.Module; in C++ the module itself",
    "PoplarExecutor.parameters": "a wrapped nn.Module; in C++ the module itself",
    "PoplarExecutor.train": "a wrapped nn.Module; in C++ the module itself",
    "PoplarExecutor.eval": "a wrapped nn.Module; in C++ the module itself",
    "PoplarExecutor.model": "a wrapped nn.Module; in C++ the module itself",
    "optimizer.has_state": "the state is with the model: TrainingModel::optimizerState",
    "optimizer.step (LAMB)": "an eager step of torch.optim",
}
# Forms of operators that PopTorch refused because its device lacked them, and the test that both packages have them.
LIFTED = {
    "`F.cross_entropy`, `nn.CrossEntropyLoss` with weights of classes": "test/parity/test_weighted_losses.py",
    "`F.nll_loss`, `nn.NLLLoss` with weights of classes": "test/parity/test_weighted_losses.py",
    '`F.ctc_loss`, `nn.CTCLoss` with `reduction="none"`': "test/parity/test_weighted_losses.py",
    "`F.ctc_loss`, `nn.CTCLoss` with concatenated targets": "test/parity/test_weighted_losses.py",
}
FILES = {
    "Options": "options.h",
    "Training": "options.h",
    "Precision": "options.h",
    "_Popart": "options.h",
    "Jit": "options.h",
    "Distributed": "options.h",
    "TensorLocations": "options.h",
    "TensorLocationSettings": "options.h",
    "strategies": "options.h",
    "Block": "annotate.h",
    "PoplarExecutor": "model.h",
    "optim": "optim.h",
    "optimizer": "optim.h model.h",
    "MultiConv": "annotate.h",
    "Error": "error.h",
    "DataLoader": "data_loader.h",
    "profiling": "profiling.h",
}


def names():
    """(priority, name) in the order of the specification."""
    text = (ROOT / "docs" / "spec" / "index.md").read_text()
    rows = re.findall(r"^\| (\S+) \| `(.+?)` \| .* \| ([ABC]) \|$", text, re.MULTILINE)
    return [(priority, f"{owner}.{name}") for owner, name, priority in rows]


def _code(path):
    """The header without its comments."""
    return "\n".join(re.sub(r"//.*", "", line) for line in path.read_text().splitlines())


def cpp_declaration(name):
    """The header that declares the name for C++ programs: "options.h: deviceIterations"; None: no header does."""
    if name in PYTHON_ONLY:
        return None
    prefix, _, last = name.partition(".")
    wanted = CPP.get(name, last.split(" ")[0])
    wanted_files = FILES[prefix].split() if prefix in FILES else None
    files = [path for path in HEADERS if (prefix == "poptorch" if wanted_files is None else path.name in wanted_files)]
    word = rf"(?<![A-Za-z_]){re.escape(wanted)}"
    kinds = [  # a type, then a function, then a field or constant
        rf"(class|struct|namespace|using) (ABELE_API )?{word}\s*[:{{=]",
        rf"{word}(?![A-Za-z_])\(" if wanted[-1].isalnum() else word,
        rf"{word}(?![A-Za-z_])(\s*[={{]([^;,()]|\(\))*)?[,;]",
        rf"#define {word}",
    ]
    for kind in kinds:
        for path in files:
            if path.exists() and re.search(kind, _code(path)):
                return f"{path.name}: {wanted}"
    return None


def cpp_state(name):
    """The column for C++."""
    found = cpp_declaration(name)
    if found is not None:
        return f"`{found}`"
    if name in PYTHON_ONLY:
        return f"tied to Python: {PYTHON_ONLY[name]}"
    if name.startswith("variables."):
        variable = f'"{name.removeprefix("variables.")}"'
        sources = [path for path in (ROOT / "src").rglob("*.cc") if path.parts[-2] != "bind"]
        return "read" if any(variable in path.read_text() for path in sources) else "not read"
    return "not there"


def _exists(name):
    """Whether the Python package has the name."""
    sys.path.insert(0, str(ROOT / "python"))
    import poptorch
    import poptorch.testing  # explicit, as in programs
    import torch

    prefix, _, last = name.partition(".")
    last = last.split(" ")[0]
    opts = poptorch.Options()
    tensors = [torch.nn.Parameter(torch.zeros(1))]
    optimizers = []
    for kind in poptorch.optim.__all__:
        with contextlib.suppress(poptorch.Error, AttributeError, TypeError):
            optimizers.append(getattr(poptorch.optim, kind)(tensors, lr=0.1))
    places = {
        "poptorch": [poptorch],
        "Options": [opts],
        "strategies": [
            poptorch.Stage,
            poptorch.Phase,
            poptorch.SerialPhasedExecution,
            poptorch.ParallelPhasedExecution,
        ],
        "optimizer": optimizers,
        "PoplarExecutor": [poptorch.PoplarExecutor, torch.nn.Module],
        "Error": [poptorch.Error, poptorch.RecoverableError],
    }
    if prefix in ("Training", "Precision", "Jit", "_Popart", "Distributed", "TensorLocations"):
        found = [getattr(opts, prefix)]
    else:
        found = places.get(prefix) or [getattr(poptorch, prefix, None)]
    return any(hasattr(place, last.split(".")[0]) for place in found)


def _option_on_device(name):
    """The option's effect on the device in src/options/options.json; None if the name is not an option."""
    group, _, method = name.partition(".")
    rows = json.loads((ROOT / "src/options/options.json").read_text())["options"]
    return next((row["device"] for row in rows if (row["group"], row["method"]) == (group, method)), None)


def python_state(name, spec):
    """The column for Python."""
    kind, text = spec["notes"].get(name, ("", ""))
    if kind == "refused":
        return f"refused: {text}"
    if spec["names"].get(name, {}).get("covered"):
        hint, _, reason = (_option_on_device(name) or "").partition(": ")
        if kind == "no_effect" or hint == "hint":
            reason = text or reason
            return f"accepted without effect{': ' if reason else ''}{reason}"
        return f"works; differs: {text}" if kind == "differs" else "works"
    if name.startswith("variables."):
        return "not tested"
    return "there, not tested" if _exists(name) else "not there"


def _escaped(text):
    return text.replace("|", "\\|").replace("\n", " ")


def name_lines(spec):
    rows = [(priority, name, python_state(name, spec), cpp_state(name)) for priority, name in names()]
    states = ("works", "accepted without effect", "refused")
    works, accepted, refused = (sum(row[2].startswith(state) for row in rows) for state in states)
    lines = [
        "## Names",
        f"{len(rows)} names; in Python {works} work (a test shows it), {accepted} are accepted without effect (their "
        f"arguments are checked, and nothing else happens), {refused} are refused; "
        f"{sum('`' in cpp for *_, cpp in rows)} are declared for C++. Priority A: in the user guide; B: documented "
        "elsewhere; C: rare.",
        "",
        "| name | priority | Python | C++ |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{name}` | {priority} | {_escaped(state)} | {cpp} |" for priority, name, state, cpp in rows]
    return lines


def walk_lines(walk):
    sys.path.insert(0, str(ROOT / "test" / "parity" / "walk"))
    import walk_known

    def keys(state):
        return [key for key, result in walk.items() if result["state"] == state]

    def label(key):
        kind, _, name = key.partition(" ")
        return f"`{name}`" + (" (module)" if kind == "module" else "")

    def count(kind, what):
        return sum(1 for key, result in walk.items() if key.startswith(kind) and result[what])

    bad = keys("different") + keys("untyped") + keys("crash") + keys("hang")
    lines = [
        "",
        "## Operators and modules of torch",
        "`test/parity/test_walk.py` runs every operator of torch's own database and every module class of `torch.nn`, "
        "captured and in eager PyTorch, in float32 where the operator has it, and compares bits. Models are those of "
        "the package `abele`; `poptorch` takes the same operators, also in these forms that PopTorch's device lacked:",
        "",
        "| form | test |",
        "|---|---|",
        *[f"| {form} | `{test}` |" for form, test in LIFTED.items()],
        "",
        "| | equal forward | equal gradients |",
        "|---|---|---|",
        f"| operators | {count('op ', 'forward')} | {count('op ', 'training')} |",
        f"| module classes | {count('module ', 'forward')} | {count('module ', 'training')} |",
        "",
        "Equal up to rounding:",
        "",
        *[f"- {label(key)}: {walk_known.CLOSE[key]}" for key in keys("close")],
        "",
        "Refused with a typed error for some of their samples, or for all:",
        "",
        "| name | code | why |",
        "|---|---|---|",
    ]
    for key in keys("refused"):
        found = re.search(r"E\d{4}", walk[key]["detail"])
        lines.append(f"| {label(key)} | {found[0] if found else ''} | {_escaped(walk_known.REFUSED.get(key, ''))} |")
    if bad:
        lines += ["", "Wrong, and to be fixed: " + ", ".join(label(key) for key in bad)]
    lines += ["", "Nothing to compare:", ""]
    lines += [f"- {label(key)}: {walk_known.NO_SAMPLE.get(key, walk[key]['detail'])}" for key in keys("no sample")]
    lines += [
        "",
        "Where torch looks at values to choose a faster way, a compiled program takes the way that is right for all "
        "values: causal masks are recognised only when the model holds them (a buffer, or made of constants), and "
        "padding masks never shorten what `nn.TransformerEncoder` computes in evaluation "
        "(as `enable_nested_tensor=False`).",
    ]
    return lines


def page(spec, walk):
    head = [
        "# Compatibility",
        "What works of PopTorch's public surface and of torch, and where numbers differ. "
        "`scripts/gen_compatibility.py` writes the tables of names and operators from test results.",
        "",
        BY_HAND.search(PAGE.read_text())[0],
        "",
    ]
    return "\n".join([*head, *name_lines(spec), *walk_lines(walk), ""])


def run_tests():
    """Results of the specification's tests and of the walk."""
    with tempfile.TemporaryDirectory() as folder:
        spec, walk = Path(folder, "spec.json"), Path(folder, "walk.json")
        environment = {**os.environ, "ABELE_SPEC_JSON": str(spec), "ABELE_WALK_JSON": str(walk)}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python"), environment.get("PYTHONPATH", "")])
        command = [sys.executable, "-m", "pytest", "-q", "test/spec", "test/parity/test_walk.py"]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        return json.loads(spec.read_text()), json.loads(walk.read_text())


def check():
    """The errors of the page, as lines of text."""
    text = PAGE.read_text() if PAGE.exists() else ""
    rows = re.findall(r"^\| `([^`]+)` \| ([ABC]) \| (.*) \| (.*) \|$", text, re.MULTILINE)
    listed = sorted(name for name, *_ in rows)
    problems = []
    if listed != sorted(name for _, name in names()):
        problems.append("the page does not list each name of docs/spec/index.md once")
    for name, _, _, cpp in rows:
        if cpp.startswith("`") and cpp_state(name) != cpp:
            problems.append(f"{name}: {cpp} is not declared in include/abele")
    return problems


def renew_cpp():
    """The page with C++ states from the headers as they are now; the others stay."""
    declared = 0

    def row(found):
        nonlocal declared
        cpp = cpp_state(found[1])
        declared += "`" in cpp
        return f"| `{found[1]}` | {found[2]} | {found[3]} | {cpp} |"

    text = re.sub(r"^\| `([^`]+)` \| ([ABC]) \| (.*) \| (.*) \|$", row, PAGE.read_text(), flags=re.MULTILINE)
    PAGE.write_text(re.sub(r"\d+ are declared for C\+\+", f"{declared} are declared for C++", text))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path)
    parser.add_argument("--walk", type=Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--cpp", action="store_true")
    arguments = parser.parse_args()
    if arguments.cpp:
        renew_cpp()
        return 0
    if arguments.check:
        problems = check()
        for problem in problems:
            print(f"docs/compatibility.md: {problem}; run scripts/gen_compatibility.py")
        return 1 if problems else 0
    if arguments.spec and arguments.walk:
        spec, walk = json.loads(arguments.spec.read_text()), json.loads(arguments.walk.read_text())
    else:
        spec, walk = run_tests()
    PAGE.write_text(page(spec, walk))
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
