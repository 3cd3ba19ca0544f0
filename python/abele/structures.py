"""Tensors in nested containers: flatten, rebuild, and parsers for custom types.

torch.utils._pytree walks the arguments of torch's own functions (_widening.py). It knows containers by their exact
class, from a table that torch itself reads. A call's arguments may hold lists, tuples and dicts of the program's own
classes, and a parser counts for subclasses, too; so these have functions of their own.
Source: spec annotations.md section 10, environment.md section 6.
"""

import abc
import copy
import dataclasses
import functools
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from ._errors import require_type, user_error


class ICustomArgParser(abc.ABC):
    """How the tensors inside a custom type are found and replaced."""

    @abc.abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """Yields every tensor of `struct`, always in the same order."""

    @abc.abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """A new object like `original_structure`. Its tensors come from the iterator, in the order of yieldTensors."""


PARSERS = {}  # type -> parser, in the order of registration
OWN_PARSERS = {}  # the same for types of this package; these are not the program's


def registerCustomArgParser(arg_data_type: type, arg_parser: ICustomArgParser) -> None:
    """Uses `arg_parser` for values of this type, instead of an earlier parser. None removes the parser."""
    require_type("registerCustomArgParser", "arg_data_type", arg_data_type, type, "a class")
    if arg_parser is None:
        PARSERS.pop(arg_data_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise user_error(
            "E0708",
            f"the parser for {arg_data_type.__name__} is a {type(arg_parser).__name__}",
            expected="an instance of a subclass of poptorch.ICustomArgParser",
        )
    PARSERS[arg_data_type] = arg_parser


def registerGeometricCustomArgParsers():
    """Registers parsers for graph data. Does nothing if poptorch_geometric is not installed."""
    try:
        from poptorch_geometric import registerCustomArgParsers
    except ImportError:
        return
    registerCustomArgParsers()


def parser_for(value):
    """The parser for the value's type, or for the nearest of its bases that has one; otherwise None."""
    if not PARSERS:
        return OWN_PARSERS.get(type(value))
    if isinstance(value, torch.Tensor):
        return None
    exact = PARSERS.get(type(value)) or OWN_PARSERS.get(type(value))
    return exact or next((parser for cls, parser in PARSERS.items() if isinstance(value, cls)), None)


def typed_nesting(function):
    """Makes structures that are nested deeper than Python's recursion allows end in E0708."""

    @functools.wraps(function)
    def walk(*args, **kwargs):
        try:
            return function(*args, **kwargs)
        except RecursionError:
            pass
        raise user_error(
            "E0708",
            "arguments or results are nested too deeply",
            found=f"more levels than Python's recursion limit of {sys.getrecursionlimit()} allows",
            expected="tensors in a few levels of tuples, lists and dictionaries",
            remedy="put the tensors into one list, or raise the limit with sys.setrecursionlimit",
        )

    return walk


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _visit(structure, canonical, found):
    if isinstance(structure, torch.Tensor):
        found.append(structure)
        return
    parser = parser_for(structure)
    if parser is not None:
        found.extend(parser.yieldTensors(structure))
    elif isinstance(structure, dict):
        order = canonical if isinstance(canonical, dict) else structure
        for key in order:
            _visit(structure[key], order[key], found)
    elif isinstance(structure, (list, tuple)):
        known = isinstance(canonical, (list, tuple)) and len(canonical) <= len(structure)
        order = [*canonical, *structure[len(canonical) :]] if known else structure
        for item, like in zip(structure, order, strict=True):
            _visit(item, like, found)


@typed_nesting
def flattenTensorStructure(tensors, canonical_structure=None):
    """The tensors of a structure, depth first. Skips other leaves.

    Args:
        tensors: a tensor, or nested tuples, lists, dicts and types with a registered parser.
        canonical_structure: a structure of the same form whose dicts give the order of keys.
    """
    found = []
    _visit(tensors, tensors if canonical_structure is None else canonical_structure, found)
    return found


def parts_of(structure):
    """What a container holds, in its order. None for a leaf: a tensor, a value with a parser, any other object."""
    if not isinstance(structure, (tuple, list, dict)) or parser_for(structure) is not None:
        return None
    return structure.values() if isinstance(structure, dict) else structure


def containers_in(structure):
    """The containers of a structure, each before those that it holds."""
    parts = parts_of(structure)
    if parts is not None:
        yield structure
        for part in parts:
            yield from containers_in(part)


@typed_nesting
def other_leaves(structure):
    """The leaves of a structure that are neither tensors nor values with a parser, depth first."""
    parts = parts_of(structure)
    if parts is not None:
        return [leaf for part in parts for leaf in other_leaves(part)]
    return [] if isinstance(structure, torch.Tensor) or parser_for(structure) is not None else [structure]


def own_attributes(container):
    """Attributes of a container of the program's class, name -> value. Leaves out attributes that are items."""
    held = getattr(container, "__dict__", None)
    if not held or held is container:  # its attributes are its items
        return {}
    items = set(map(id, container.values() if isinstance(container, dict) else container))
    return {name: value for name, value in held.items() if id(value) not in items}


def _empty_like(structure):
    """A dictionary or list of a subclass without items, but with all that the subclass adds (default factories,
    attributes)."""
    is_own = getattr(structure, "__dict__", None) is structure  # its attributes are its items
    if not is_own and not dataclasses.is_dataclass(structure):
        return copy.copy(structure)
    result = type(structure).__new__(type(structure))  # not by __init__, which asks for the fields
    if is_own:
        result.__dict__ = result
    else:
        vars(result).update(vars(structure))
    return result


def _reconstructed(parser, structure, values, replace):
    """The parser's copy of the structure with its tensors replaced. Checks that their number stays the same."""
    own = list(parser.yieldTensors(structure))
    if own and not any(map(replace, own)):
        return structure
    tensors = iter([next(values) if replace(tensor) else tensor for tensor in own])
    try:
        result, missed = parser.reconstruct(structure, tensors), len(list(tensors))
    except StopIteration:
        missed = -1
    if missed:
        taken = "more" if missed < 0 else len(own) - missed
        raise user_error(
            "E0708",
            f"the parser of {type(structure).__name__} takes other tensors than it yields",
            found=f"reconstruct() takes {taken}, yieldTensors() yields {len(own)}",
            expected="the same number, in the same order",
        )
    return result


def _rebuild(structure, values, replace):
    if replace(structure):
        return next(values)
    parser = parser_for(structure)
    if parser is not None:
        return _reconstructed(parser, structure, values, replace)
    if isinstance(structure, dict):
        if type(structure) is dict:
            return {key: _rebuild(value, values, replace) for key, value in structure.items()}
        result = _empty_like(structure)
        for key, value in structure.items():
            result[key] = _rebuild(value, values, replace)
        return result
    if isinstance(structure, (list, tuple)):
        items = [_rebuild(item, values, replace) for item in structure]
        if type(structure) in (list, tuple):
            return type(structure)(items)
        if isinstance(structure, list):
            result = _empty_like(structure)
            result[:] = items
            return result
        return type(structure)._make(items) if hasattr(structure, "_fields") else type(structure)(items)
    return structure


@typed_nesting
def reconstructTensorStructure(structure, values, filter_fn=_is_tensor):
    """The same structure with its tensors replaced, in order, by `values`. Keeps container types.

    Args:
        filter_fn: which leaves are replaced.
    """
    return _rebuild(structure, iter(values), filter_fn)


def converted(structure, convert):
    """The same structure, with convert(part) in place of each part for which it is not None."""
    new = []

    def is_converted(part):
        found = convert(part)
        if found is not None:
            new.append(found)
        return found is not None

    return reconstructTensorStructure(structure, (new.pop() for _ in itertools.count()), is_converted)


def skeleton(structure):
    """A copy of the structure with empty tensors, which holds no memory, to be rebuilt with other tensors."""
    return reconstructTensorStructure(structure, (torch.empty(0) for _ in flattenTensorStructure(structure)))
