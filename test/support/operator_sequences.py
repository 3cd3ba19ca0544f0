"""The operators of a captured graph beside those that eager PyTorch runs: watched(function), differences(...).

Views are left out on both sides: a graph names a view once, however often a program makes it. So are allocations, which
compute nothing: torch.tensor makes one that no mode is told of.
"""

import importlib.util
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ALLOCATIONS = ("aten::empty", "aten::new_empty")
# Not views by their schemas, but their results lie in their operands' memory.
SHARES_MEMORY = {"aten::_unsafe_view", "aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"}


def _observer():
    build = Path(os.environ.get("ABELE_BUILD_DIR", ROOT / "build" / "dev"))
    build = build if build.is_absolute() else ROOT / build
    (path,) = (build / "test").glob("operator_sequence*.so")
    spec = importlib.util.spec_from_file_location("operator_sequence", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module = None


def observer():
    global _module
    if _module is None:
        _module = _observer()
    return _module


def watched(function):
    """Calls function(). Returns: its result, the operators of eager PyTorch."""
    return observer().watched(function)


def recorded(text):
    """The operators of a graph's text, in order."""
    found = re.findall(r"^\s+(?:[%_\[].* = )?([a-z_0-9]+)\.(\w+(?:\.\w+)?)\(", text, re.MULTILINE)
    return [f"{library}::{name}" for library, name in found]


def _is_left_out(name):
    base, _, overload = name.partition(".")
    return name in SHARES_MEMORY or name.startswith(ALLOCATIONS) or observer().isView(base, overload)


def difference(text, eager):
    """Where the captured graph's operators begin to differ from eager's; empty if they do not."""
    # The form of an operator that is told of conjugated and negated operands.
    all_ours = [name.replace("abele_math_bits::", "aten::") for name in recorded(text)]
    ours = [name for name in all_ours if not _is_left_out(name)]
    theirs = [name for name in eager if not _is_left_out(name)]
    for i, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine != other:
            return f"operator {i} is {mine}, eager runs {other} (after {ours[max(i - 3, 0) : i]})"
    if len(ours) != len(theirs):
        rest = ours[len(theirs) :] or theirs[len(ours) :]
        return f"{len(ours)} operators, eager runs {len(theirs)}: {rest[:4]}"
    return ""
