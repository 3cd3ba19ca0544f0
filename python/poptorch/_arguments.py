"""How a call's arguments become the arguments of forward, and how later calls are compared with the compiled one.

Source: spec executor.md, section 2.
"""

import inspect

import torch

from . import structures
from ._errors import userError


class Binding:
    """Binds the arguments of a call to the signature of a model's forward."""

    def __init__(self, forward):
        try:
            signature = inspect.signature(forward)
        except ValueError:  # compiled by TorchScript: the model checks its arguments itself
            signature = inspect.signature(lambda *args, **kwargs: None)
        self._parameters = list(signature.parameters.values())
        self._takes_any_name = any(p.kind == inspect.Parameter.VAR_KEYWORD for p in self._parameters)

    def bind(self, args, kwargs):
        """Returns: (positional arguments, named arguments), defaults included.

        Raises:
            poptorch.Error: a mandatory argument is missing.
            AssertionError: too many, unknown or repeated arguments.
        """
        kinds = inspect.Parameter
        unknown = [] if self._takes_any_name else sorted(kwargs.keys() - {p.name for p in self._parameters})
        assert not unknown, f"forward has no arguments {', '.join(unknown)}"
        left, named, positional = dict(kwargs), {}, []
        taken, after_var = 0, False
        for parameter in self._parameters:
            if parameter.kind == kinds.VAR_POSITIONAL:
                positional += args[taken:]
                taken, after_var = len(args), True
            elif parameter.kind == kinds.VAR_KEYWORD:
                named.update(left)
                left = {}
            elif parameter.kind == kinds.KEYWORD_ONLY or after_var:
                named[parameter.name] = self._valueOf(parameter, left)
            elif taken < len(args):
                assert parameter.name not in left, f"argument {parameter.name!r} is given twice"
                positional.append(args[taken])
                taken += 1
            else:
                positional.append(self._valueOf(parameter, left))
        assert taken == len(args), f"forward takes {len(positional)} positional arguments, {len(args)} were given"
        return positional, named

    def _valueOf(self, parameter, left):
        if parameter.name in left:
            return left.pop(parameter.name)
        if parameter.default is inspect.Parameter.empty:
            raise userError(
                "E0708",
                "arguments",
                f"argument {parameter.name!r} of forward is missing",
                expected=f"forward({', '.join(str(p) for p in self._parameters)})",
            )
        return parameter.default


def _changed(path, found, expected, remedy):
    return userError(
        "E0704",
        "input-changed",
        "the inputs differ from those the model was compiled for",
        at=path,
        found=found,
        expected=expected,
        remedy=remedy,
    )


_REMEDY = "keep shapes, types and values constant, or call destroy() (or wrap the model again) before this call"


def typeText(tensor):
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def requireSame(path, compiled, given):
    """Raises E0704 if a later call's argument does not fit the compiled one. `compiled` holds _TensorType leaves."""
    if isinstance(compiled, TensorType):
        if not isinstance(given, torch.Tensor):
            raise _changed(path, type(given).__name__, f"a tensor {compiled}", _REMEDY)
        if given.dtype != compiled.dtype or given.shape != compiled.shape:
            raise _changed(path, typeText(given), str(compiled), _REMEDY)
        return
    if isinstance(compiled, ParsedType):
        if type(given).__name__ != compiled.name:
            raise _changed(path, type(given).__name__, compiled.name, _REMEDY)
        requireSame(path, compiled.tensors, structures.flattenTensorStructure(given))
        return
    if type(compiled) is not type(given):
        raise _changed(path, type(given).__name__, type(compiled).__name__, _REMEDY)
    if isinstance(compiled, dict):
        extra, missing = given.keys() - compiled.keys(), compiled.keys() - given.keys()
        if extra or missing:
            raise _changed(
                path,
                f"extra keys {sorted(map(str, extra))}, missing keys {sorted(map(str, missing))}",
                f"the keys {sorted(map(str, compiled))}",
                _REMEDY,
            )
        for key, value in compiled.items():
            requireSame(f"{path}[{key!r}]", value, given[key])
    elif isinstance(compiled, (list, tuple)):
        if len(compiled) != len(given):
            raise _changed(path, f"{len(given)} elements", f"{len(compiled)} elements", _REMEDY)
        for index, (ours, theirs) in enumerate(zip(compiled, given, strict=True)):
            requireSame(f"{path}[{index}]", ours, theirs)
    elif compiled is not given and not _equal(compiled, given):
        raise _changed(path, repr(given), repr(compiled), _REMEDY)


def _equal(a, b):
    try:
        return bool(a == b)
    except (TypeError, ValueError, RuntimeError):
        return False


class TensorType:
    """Shape and dtype of a tensor argument, in place of the tensor."""

    __slots__ = ("shape", "dtype")

    def __init__(self, tensor):
        self.shape = tensor.shape
        self.dtype = tensor.dtype

    def __repr__(self):
        return typeText(self)


class ParsedType:
    """The types of the tensors in an argument with a registered parser, which may know real tensors only."""

    __slots__ = ("name", "tensors")

    def __init__(self, value):
        self.name = type(value).__name__
        self.tensors = [TensorType(tensor) for tensor in structures.flattenTensorStructure(value)]

    def __repr__(self):
        return f"{self.name}{self.tensors}"


def signatureOf(structure):
    """The structure with TensorType in place of tensors and ParsedType in place of what has a registered parser."""
    leaves = []

    def isLeaf(value):
        if isinstance(value, torch.Tensor) or structures.parserFor(value) is not None:
            leaves.append(TensorType(value) if isinstance(value, torch.Tensor) else ParsedType(value))
            return True
        return False

    return structures.reconstructTensorStructure(structure, iter(leaves.pop, None), isLeaf)


def hasDict(structure):
    """True if a dict is somewhere in the structure."""
    if isinstance(structure, dict):
        return True
    return isinstance(structure, (list, tuple)) and any(hasDict(item) for item in structure)
