"""Options from text: configuration files, whose lines are Python for setters, and JSON.

Python itself evaluates a line, but only syntax in `_NODES`. A line can read public attributes of options, of the
objects that options hold and of plain values, and so cannot reach anything else in the process.
Source: spec options.md, sections 7 and 8.
"""

import ast
import builtins
import enum
import functools
import json
import os
import types

import torch

from . import enums, strategies
from ._errors import ConfigFileError, format_message, located, refused, user_error
from ._exceptions import make_error
from ._native import core
from ._option_setters import PopartSetters
from ._options_dict import OptionsDict
from ._whole_files import read_text

_NODES = (
    *(ast.Module, ast.Expression, ast.Expr, ast.Assign, ast.AugAssign),
    *(ast.Constant, ast.Name, ast.expr_context, ast.Attribute, ast.Subscript, ast.Slice, ast.Starred),
    *(ast.Call, ast.keyword, ast.JoinedStr, ast.FormattedValue),
    *(ast.BoolOp, ast.boolop, ast.BinOp, ast.operator, ast.UnaryOp, ast.unaryop, ast.Compare, ast.cmpop, ast.IfExp),
    *(ast.List, ast.Tuple, ast.Set, ast.Dict),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension),
)
_FUNCTIONS = (
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "int", "len", "list", "max", "min", "pow"),
    *("range", "repr", "reversed", "round", "set", "sorted", "str", "sum", "tuple", "zip"),
)
_OPTIONS = (OptionsDict, PopartSetters)
_PLAIN = (str, bool, int, float, list, tuple, dict, set, range, type(None))
_MADE = (strategies.Stage, strategies.Phase, strategies._Strategy, enum.Enum, enum.EnumMeta, types.SimpleNamespace)
_PRIVATE = ("_Popart", "_popart")  # that may be named
_READ, _WRITE = "<read>", "<write>"  # names that no line can have


CLASSES = {}  # classes of options that a line may name; options.py fills it


@functools.cache
def _names():
    """The names that a line may use in addition to `options`."""
    members = {name: getattr(enums, name) for name in enums.__all__}
    made = {name: getattr(strategies, name) for name in strategies.__all__}
    made |= {**members, "TensorLocationSettings": CLASSES["TensorLocationSettings"]}
    home = types.SimpleNamespace(
        **made,
        Options=CLASSES["Options"],
        enums=types.SimpleNamespace(**members),
        options=types.SimpleNamespace(**made),
    )
    dtypes = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    functions = {name: getattr(builtins, name) for name in _FUNCTIONS}
    guards = {_READ: _read, _WRITE: _write, "__builtins__": {}}
    return {**made, **functions, **guards, "poptorch": home, "torch": types.SimpleNamespace(**dtypes)}


def _read(owner, name):
    # format() would read attributes that the text names.
    if not isinstance(owner, (*_OPTIONS, *_MADE, *_PLAIN)) or name in ("format", "format_map"):
        raise refused(
            AttributeError,
            format_message(
                "E0701", f"AttributeError: {name} of {type(owner).__name__!r} is nothing that options are made of"
            ),
        )
    return getattr(owner, name)


def _write(owner):
    if not isinstance(owner, _OPTIONS):
        raise refused(
            AttributeError, format_message("E0701", f"AttributeError: {type(owner).__name__!r} has no options to set")
        )
    return owner


def _is_option(target):
    """Returns whether a statement may set it. Items of other lists and dicts are copies."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.value, ast.Attribute) and target.value.attr == "options"
    return isinstance(target, ast.Attribute)


class _Guard(ast.NodeTransformer):
    """Refuses other syntax than that of options, and inserts checks of the attributes that a line reads."""

    def visit(self, node):
        if not isinstance(node, _NODES):
            raise SyntaxError(f"{type(node).__name__} is no part of a file of options")
        return super().visit(node)

    def visit_Expr(self, node):
        if not any(isinstance(each, ast.Call) for each in ast.walk(node)):
            raise SyntaxError("no call of a setter")
        return self.generic_visit(node)

    def visit_Assign(self, node):
        if not all(map(_is_option, node.targets)):
            raise SyntaxError("only options have values to set")
        return self.generic_visit(node)

    def visit_Attribute(self, node):
        if node.attr.startswith("_") and node.attr not in _PRIVATE:
            raise SyntaxError(f"{node.attr} is no option")
        owner = self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            return ast.Call(ast.Name(_READ, node.ctx), [owner, ast.Constant(node.attr)], [])
        return ast.Attribute(ast.Call(ast.Name(_WRITE, ast.Load()), [owner], []), node.attr, node.ctx)


def _compiled(source, mode="exec"):
    """Compiles a text. Raises SyntaxError for syntax that options do not need."""
    try:
        tree = _Guard().visit(ast.parse(source, mode=mode))
        return compile(ast.fix_missing_locations(tree), "<options>", mode)
    except (ValueError, MemoryError, RecursionError) as error:
        raise SyntaxError(str(error) or type(error).__name__) from error


def _made_by(text):
    """The strategy or location settings that the text describes."""
    try:
        code = _compiled(text, "eval")
    except SyntaxError as error:
        raise user_error("E0702", f"cannot read {text}: {error.msg}") from None
    return eval(code, dict(_names()))


# Configuration files -------------------------------------------------------------------------------------------------
def _lines_of(text, name):
    """(code, place) of every line except comments."""
    lines = [line for line in map(str.strip, text.split("\n")) if line and not line.startswith("#")]
    for number, line in enumerate(lines, 1):
        source, place = f"options.{line}", f"line {number} of {name}"
        try:
            yield _compiled(source), f"{place}: {source}"
        except SyntaxError as error:
            what = f"SyntaxError at {place}: {error.msg}\n> {source}"
            remedy = 'write a setter\'s call on each line, without "options." in front; # begins a comment'
            text = format_message("E0702", what, expected="lines such as deviceIterations(4)", remedy=remedy)
            raise make_error(ConfigFileError, text, "poptorch_py_error", code="E0702") from None


def apply_file(options, filepath):
    """Applies every line of the file, or none if one does not parse or has syntax that options do not need."""
    name = os.path.basename(os.fsdecode(filepath))
    for code, place in list(_lines_of(read_text(filepath), name)):
        try:
            exec(code, {**_names(), "options": options})
        except Exception as error:
            raise located(error, place) from None


# JSON ----------------------------------------------------------------------------------------------------------------
def _once(pairs):
    table = dict(pairs)
    if len(table) != len(pairs):
        raise user_error(
            "E0702", "options are not a JSON object: a name twice", found=", ".join(name for name, _ in pairs)
        )
    return table


@functools.cache
def _takes_object():
    """Paths of the setters that take a strategy or location settings, which are texts in JSON."""
    rows = [row for group in ("Options", "TensorLocations") for row in core().optionSetters(group)]
    return {"setExecutionStrategy", *(path for path, _, given, *_ in rows if given and given[0][1] == "location")}


def _setter_of(options, path):
    setter = options
    for part in path.split("."):
        if part.startswith("_") and part not in _PRIVATE:
            raise user_error("E0701", f"{path}: {part} is no option")
        setter = getattr(setter, part)
    if not callable(setter):
        remedy = 'name the method: {"deviceIterations": 4}'
        raise user_error("E0701", f"{path} is a value", expected="a setter", remedy=remedy)
    return setter


def _argument_of(path, value):
    if not isinstance(value, str):
        return value
    if path in _takes_object():
        return _made_by(value)
    kind, _, member = value.partition(".")
    return getattr(enums, kind).__members__.get(member, value) if kind in enums.__all__ else value


def apply_json(options, string):
    """Calls every setter that the JSON object names."""
    table = json.loads(string, object_pairs_hook=_once)
    if not isinstance(table, dict):
        raise user_error(
            "E0702", "options are not a JSON object", found=string, expected='{"dotted.setter": arguments}'
        )
    for path, value in table.items():
        try:
            if path == "anchored_tensors.update":  # reading an option gives a copy
                options.anchored_tensors = options.anchored_tensors | value
                continue
            arguments = value if isinstance(value, list) else [value]
            _setter_of(options, path)(*(_argument_of(path, each) for each in arguments))
        except Exception as error:
            raise located(error, f"{path} of the JSON") from None


def saved_values(text):
    """Native values of the options that a file was saved with; the place among other processes is this one's."""
    values, strategy = core().savedOptionValues(text)
    values.strategy = _made_by(strategy)
    return values
