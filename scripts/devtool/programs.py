"""Options and targets of a benchmark or of the demonstration, read from its source.

They import torch and abele at their top. Their help, a wrong option and what is to be built for them need neither.
"""

import argparse
import ast
from pathlib import Path

TYPES = {"int": int, "float": float, "Path": Path}


def targets(source: Path) -> list[str]:
    """The targets that it needs built: its TARGETS, else the Python module."""
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TARGETS":
            return list(ast.literal_eval(node.value))
    return ["abele_python"]


def parser(source: Path, prog: str) -> argparse.ArgumentParser:
    """Its options. Names must be literals; a choice or an action that is computed is left to the program itself."""
    tree = ast.parse(source.read_text())
    made = argparse.ArgumentParser(
        prog=prog, description=ast.get_docstring(tree), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            names = [ast.literal_eval(name) for name in call.args]
            made.add_argument(*names, **_keywords({word.arg: word.value for word in call.keywords}))
    return made


def _keywords(given: dict[str, ast.expr]) -> dict:
    kept = {}
    for word in ("action", "nargs", "choices", "metavar"):
        try:
            kept[word] = ast.literal_eval(given[word])
        except (KeyError, ValueError):
            continue
    if "type" in given:
        kept["type"] = TYPES.get(ast.unparse(given["type"]), str)
    if "help" in given:
        kept["help"] = _text(given["help"])
    return kept


def _text(node: ast.expr) -> str:
    """A literal; of one with values in it the words around them."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
    return argparse.SUPPRESS if isinstance(node, ast.Attribute) else ast.literal_eval(node)
