"""The statements of a configuration file: parsed and looked up by name; no code of the file's own ever runs.

A line is what remains of Python without its power: calls of setters, assignments of values, literals, arithmetic, the
enumerations and option classes of `poptorch`. Source: spec options.md, section 7.
"""

import ast
import operator

import torch

from . import enums, strategies
from ._errors import refused
from ._options_dict import OptionsDict

_BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.Pow: operator.pow,
}
_UNARY = {ast.UAdd: operator.pos, ast.USub: operator.neg, ast.Not: operator.not_, ast.Invert: operator.invert}
_LARGEST_SHIFT = 64  # of << and **: a number of the file, not the memory of the machine
_DEEPEST = 100  # levels of a statement
_PRIVATE = "_Popart"  # the one group whose name begins with an underscore


class Refused(Exception):
    """A statement that no options are made of."""


def isPublic(name):
    """Whether texts may name this attribute."""
    return name == _PRIVATE or not name.startswith("_")


def parse(source, name):
    """The statements of a source text. Raises SyntaxError, or Refused for code that is more than options."""
    statements = compile(source, name, "exec", ast.PyCF_ONLY_AST).body
    for statement in statements:
        _check(statement)
    return statements


def _check(node):
    allowed = (
        (ast.Expr, ast.Assign, ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.keyword)
        + (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.expr_context)
        + tuple(_BINARY)
        + tuple(_UNARY)
    )
    level = [node]
    for _ in range(_DEEPEST):
        level = [child for parent in level for child in ast.iter_child_nodes(parent)]
    if level:
        raise Refused("nested too deeply")
    for inner in ast.walk(node):
        if not isinstance(inner, allowed):
            raise Refused(f"{type(inner).__name__} is more than options are made of")
        if isinstance(inner, ast.Attribute) and not isPublic(inner.attr):
            raise Refused(f"{inner.attr} is no option")
        if isinstance(inner, ast.keyword) and inner.arg is None:
            raise Refused("** is more than options are made of")
        if isinstance(inner, ast.Assign) and any(not isinstance(t, ast.Attribute) for t in inner.targets):
            raise Refused("only options have values to set")


def run(statement, options):
    """Applies one statement of parse()."""
    from . import options as options_module  # it imports this module

    names = {name: getattr(enums, name) for name in enums.__all__}
    names.update({name: getattr(strategies, name) for name in strategies.__all__})
    names.update({name: getattr(options_module, name) for name in ("Options", "TensorLocationSettings")})
    _Run(options, names).statement(statement)


class _Run:
    def __init__(self, options, names):
        self._options = options
        self._names = names
        ours = (cls for cls in names.values() if isinstance(cls, type) and cls is not str)  # a BlockId is a str
        self._kinds = (OptionsDict, type(options._Popart), *ours)

    def statement(self, node):
        if isinstance(node, ast.Expr):
            self.value(node.value)
            return
        value = self.value(node.value)
        for target in node.targets:
            owner = self.value(target.value)
            if not isinstance(owner, OptionsDict):
                raise refused(AttributeError, f"{ast.unparse(target)} is no option")
            setattr(owner, target.attr, value)

    def value(self, node):
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node.id)
            case ast.Attribute():
                return self._attribute(node)
            case ast.Call():
                return self._call(node)
            case ast.List():
                return [self.value(item) for item in node.elts]
            case ast.Tuple():
                return tuple(self.value(item) for item in node.elts)
            case ast.Set():
                return {self.value(item) for item in node.elts}
            case ast.Dict():
                return {self.value(key): self.value(item) for key, item in zip(node.keys, node.values, strict=True)}
            case ast.UnaryOp():
                return _UNARY[type(node.op)](self.value(node.operand))
            case ast.BinOp():
                return self._binary(node)
        raise Refused(f"{type(node).__name__} is more than options are made of")

    def _name(self, name):
        if name == "options":
            return self._options
        raise NameError(f"name {name!r} is not defined")

    def _attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id == "poptorch":
            if node.attr not in self._names:
                raise refused(AttributeError, f"poptorch.{node.attr} is nothing that options are made of")
            return self._names[node.attr]
        if isinstance(node.value, ast.Name) and node.value.id == "torch":
            dtype = getattr(torch, node.attr, None)
            if not isinstance(dtype, torch.dtype):
                raise refused(AttributeError, f"torch.{node.attr} is no element type")
            return dtype
        owner = self.value(node.value)
        is_member = isinstance(owner, type) and owner.__name__ in enums.__all__
        if not is_member and not isinstance(owner, self._kinds):
            raise refused(
                AttributeError, f"{ast.unparse(node)}: {type(owner).__name__} is nothing that options are made of"
            )
        return getattr(owner, node.attr)

    def _call(self, node):
        function = self.value(node.func)
        if isinstance(function, type):
            is_ours = function in self._names.values()
        else:
            is_ours = isinstance(function, OptionsDict) or isinstance(getattr(function, "__self__", None), self._kinds)
        if not is_ours:
            raise refused(TypeError, f"{ast.unparse(node.func)!r} is no setter")
        positional = [self.value(item) for item in node.args]
        return function(*positional, **{keyword.arg: self.value(keyword.value) for keyword in node.keywords})

    def _binary(self, node):
        left, right = self.value(node.left), self.value(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, str) and isinstance(right, str):
            return left + right
        for side in (left, right):
            if not isinstance(side, (int, float)):
                raise refused(TypeError, f"arithmetic with {type(side).__name__} in {ast.unparse(node)}")
        if isinstance(node.op, (ast.LShift, ast.Pow)) and abs(right) > _LARGEST_SHIFT:
            raise refused(ValueError, f"{ast.unparse(node)} is too large")
        return _BINARY[type(node.op)](left, right)
