"""Binds a call's arguments to those of forward, and compares later calls with the compiled one.

Source: spec executor.md, section 2.
"""

import collections
import copy
import functools
import inspect

import torch

from . import _objects, structures
from ._errors import refused, user_error
from ._logging import logger
from ._native import core

# The types that the original devices use in place of types that they lack. Results have them, and arguments may.
NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}


class Binding:
    """Binds the arguments of a call to the signature of a model's forward."""

    def __init__(self, forward):
        try:
            signature = inspect.signature(forward)
        except ValueError:  # a TorchScript module checks its arguments itself
            signature = inspect.signature(lambda *args, **kwargs: None)
        self._parameters = list(signature.parameters.values())

    def bind(self, args, kwargs):
        """Returns: (positional arguments, named arguments), defaults included.

        Raises:
            poptorch.Error: a mandatory argument is missing.
            AssertionError: too many, unknown or repeated arguments.
        """
        kinds = inspect.Parameter
        unknown = sorted(kwargs.keys() - {p.name for p in self._parameters}) if kwargs else ()
        if unknown and not any(p.kind == kinds.VAR_KEYWORD for p in self._parameters):
            raise refused(AssertionError, f"forward has no arguments {', '.join(unknown)}")
        left, named, positional = dict(kwargs), {}, []
        taken, after_var = 0, False
        for parameter in self._parameters:
            kind = parameter.kind
            if kind is kinds.VAR_POSITIONAL:
                positional += args[taken:]
                taken, after_var = len(args), True
            elif kind is kinds.VAR_KEYWORD:
                named.update(left)
                left = {}
            elif kind is kinds.KEYWORD_ONLY or after_var:
                named[parameter.name] = self._value_of(parameter, left)
            elif taken < len(args):
                if parameter.name in left:
                    raise refused(AssertionError, f"argument {parameter.name!r} is given twice")
                positional.append(args[taken])
                taken += 1
            else:
                positional.append(self._value_of(parameter, left))
        if taken != len(args):
            raise refused(
                AssertionError, f"forward takes {len(positional)} positional arguments, {len(args)} were given"
            )
        return positional, named

    def _value_of(self, parameter, left):
        if parameter.name in left:
            return left.pop(parameter.name)
        if parameter.default is inspect.Parameter.empty:
            raise user_error(
                "E0708",
                f"argument {parameter.name!r} of forward is missing",
                expected=f"forward({', '.join(str(p) for p in self._parameters)})",
            )
        return parameter.default


_REMEDY = (
    "keep shapes, types and values constant, or call destroy() (or wrap the model again) before this call; a program "
    "that was loaded without its module takes no others"
)


def _changed(path, found, expected, remedy=_REMEDY):
    return user_error(
        "E0704",
        "the inputs differ from those the model was compiled for",
        at=path,
        found=found,
        expected=expected,
        remedy=remedy,
    )


_PARSER_REMEDY = (
    "register a parser for the class (poptorch.registerCustomArgParser), or use abele.inferenceModel, where the "
    "tensors of objects are inputs"
)


def type_text(tensor):
    return _type_text(tensor.dtype, tensor.shape, None)


def _names_of(*kinds):
    """Names of the kinds, in a form that tells classes of the same name apart."""
    names = [kind.__name__ for kind in kinds]
    return names if names[0] != names[1] else [_objects.kind_text(kind) for kind in kinds]


@structures.typed_nesting
def require_same(path, compiled, given):
    """Raises E0704 if a later call's argument does not fit the compiled one. `compiled` holds _TensorType leaves."""
    if isinstance(compiled, TensorType):
        if not isinstance(given, torch.Tensor):
            raise _changed(path, type(given).__name__, f"a tensor {compiled}")
        if given.dtype not in (compiled.dtype, NARROW.get(compiled.dtype)) or given.shape != compiled.shape:
            raise _changed(path, type_text(given), str(compiled))
        return
    if isinstance(compiled, ParsedType):
        if type(given) is not compiled.kind:
            raise _changed(path, *_names_of(type(given), compiled.kind))
        require_same(path, compiled.tensors, structures.flattenTensorStructure(given))
        compiled.warn_of_others(given)
        return
    if isinstance(compiled, SequenceType):
        if not isinstance(given, (list, tuple)):
            raise _changed(path, type(given).__name__, "a tuple or list")
        given = list(given)
        while len(given) > len(compiled) and given[-1] is None:
            given = given[:-1]  # C++ treats arguments that are left out like empty ones
    elif isinstance(compiled, ConstantForm):
        if constant_form(given) != compiled.form:
            raise _changed(path, repr(given), str(compiled))
        return
    elif type(given) is not (kind := compiled.kind if isinstance(compiled, SetItems) else type(compiled)):
        raise _changed(path, *_names_of(type(given), kind))
    if isinstance(compiled, (dict, list, tuple)) and _attributes_text(compiled) != _attributes_text(given):
        raise _changed(path, *map(_attributes_text, (given, compiled)))
    if isinstance(compiled, dict):
        extra, missing = given.keys() - compiled.keys(), compiled.keys() - given.keys()
        if extra or missing:
            raise _changed(
                path,
                f"extra keys {sorted(map(str, extra))}, missing keys {sorted(map(str, missing))}",
                f"the keys {sorted(map(str, compiled))}",
            )
        for key, value in compiled.items():
            require_same(f"{path}[{key!r}]", value, given[key])
    elif isinstance(compiled, (list, tuple)):
        if len(compiled) != len(given):
            raise _changed(path, f"{len(given)} elements", f"{len(compiled)} elements")
        for index, (ours, theirs) in enumerate(zip(compiled, given, strict=True)):
            require_same(f"{path}[{index}]", ours, theirs)
    elif isinstance(compiled, SetItems):
        if not _equal(compiled.items, list(given)):
            raise _changed(path, repr(given), repr(compiled))
    elif compiled is not given and not _equal(compiled, given):
        raise _changed(path, repr(given), repr(compiled), _PARSER_REMEDY if _objects.tensors_in(given) else _REMEDY)


def _warn_of_change(kinds):
    logger.warning(
        "the %s among the arguments of forward has changed: the program goes on with the values that it was "
        "compiled with; destroy() the executor and compile again, or pass the values themselves",
        kinds,
    )


class HeldObjects:
    """Objects that a program takes as they are. Their tensors are constants of the program."""

    def __init__(self, given):
        self._texts, self._versions, self._kept = _objects.marks_of(given)

    def note_forward(self, given):
        """Called after forward: notes the plain values that forward changed."""
        if self._texts:
            self._texts = _objects.marks_of(given)[0]

    def require_same(self, given):
        """Raises E0704 if an object has other tensors than before; warns once about other changes."""
        if not self._texts:
            return
        texts, versions, _ = _objects.marks_of(given)
        if versions == self._versions and texts == self._texts:
            return
        objects = [leaf for leaf in structures.other_leaves(given) if _objects.is_object(leaf)]
        if versions == self._versions:
            kinds = (type(one).__name__ for one, a, b in zip(objects, texts, self._texts, strict=True) if a != b)
            _warn_of_change(", ".join(kinds))
            self._texts = texts
            return
        kinds = ", ".join(type(leaf).__name__ for leaf in objects if _objects.tensors_in(leaf))
        raise _changed(
            "objects among the arguments",
            f"other tensors in the {kinds}",
            "what it held when the model was compiled, which are constants of the program",
            _PARSER_REMEDY,
        )


def _equal(a, b):
    """Whether forward cannot tell two values apart: -0.0 differs from 0.0, and NaN equals NaN.

    Classes of the program define their own equality.
    """
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return _equal(list(a.items()), list(b.items()))
    if _objects.says_all(a) or (_objects.is_array(a) and not a.dtype.hasobject):
        return _objects.text_of(a) == _objects.text_of(b)
    try:
        same = a == b
        if not hasattr(same, "shape"):
            return bool(same) or bool(a != a and b != b)
        return a.shape == b.shape and bool((same | ((a != a) & (b != b))).all())
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False


def constant_form(value):
    """The text of a value other than a tensor, in C++'s forms; for other objects the name of their class."""
    is_plain = type(value) in (bool, float, str) or (type(value) is int and -(2**63) <= value < 2**63)
    return core().constantForm(value if is_plain else type(value).__qualname__)


class SequenceType(list):
    """Arguments of a program that C++ saved. C++ has one kind of sequence, so any tuple or list fits."""


class ConstantForm:
    """A value in the arguments of a program that C++ saved."""

    __slots__ = ("form",)

    def __init__(self, form):
        self.form = form

    def __repr__(self):
        return self.form.partition(":")[2]


def _contiguous_strides(shape):
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@functools.lru_cache(maxsize=1024)
def _type_text(dtype, shape, strides):
    text = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    return text if strides in (None, _contiguous_strides(shape)) else f"{text} with strides {list(strides)}"


def _strides_of(tensor):
    return tensor.stride() if tensor.layout == torch.strided and not tensor.is_nested else None


def _type_of(tensor):
    """The text of the tensor's TensorType."""
    return _type_text(tensor.dtype, tensor.shape, _strides_of(tensor))


class TensorType:
    """Shape, dtype and strides of a tensor argument, in place of the tensor."""

    __slots__ = ("shape", "dtype", "strides")

    def __init__(self, tensor):
        self.shape, self.dtype, self.strides = tensor.shape, tensor.dtype, _strides_of(tensor)

    @classmethod
    def of(cls, dtype, sizes):
        """Makes one without a tensor."""
        result = cls.__new__(cls)
        result.shape, result.dtype, result.strides = torch.Size(sizes), dtype, None
        return result

    def __repr__(self):
        return _type_text(self.dtype, self.shape, self.strides)


class SetItems:
    """A set among the arguments: its class, and its items in the order that forward saw."""

    __slots__ = ("kind", "items")

    def __init__(self, value):
        self.kind, self.items = type(value), list(value)

    def __repr__(self):
        return f"{self.kind.__name__}({self.items})"


class ParsedType:
    """An argument with a registered parser, which may expect real tensors: its class, the types of its tensors, and the
    text of its plain values, which are constants of the program. text None: a change of the values was reported."""

    __slots__ = ("kind", "tensors", "values")

    def __init__(self, value):
        self.kind = type(value)
        self.tensors = [TensorType(tensor) for tensor in structures.flattenTensorStructure(value)]
        self.values = _objects.plain_text(value)

    def __repr__(self):
        return _parsed_form(self.kind, map(repr, self.tensors), self.values)

    def warn_of_others(self, given):
        """Warns once if the plain values of a later call's argument differ. PopTorch compares only the tensors."""
        if self.values is not None and _objects.plain_text(given) != self.values:
            self.values = None
            _warn_of_change(self.kind.__name__)


def _copy_of(value):
    """A deep copy, except for the program's objects in a deque: a copy of such an object may equal nothing."""
    kept = {}
    if isinstance(value, collections.deque):
        kept = {id(item): item for item in value if _objects.is_object(item)}
    return copy.deepcopy(value, kept)


def signature_of(structure):
    """The structure in the form that later calls are compared with.

    It has TensorType in place of tensors, ParsedType in place of values with a registered parser, and copies of values
    that the program may change in place.
    """

    def type_of(value):
        if isinstance(value, torch.Tensor):
            return TensorType(value)
        if structures.parser_for(value) is not None:
            return ParsedType(value)
        if isinstance(value, (set, frozenset)):
            return SetItems(value)
        is_changeable = isinstance(value, _objects.CHANGEABLE) or type(value).__module__ == "numpy"
        return _copy_of(value) if is_changeable else None

    return structures.converted(structure, type_of)


@structures.typed_nesting
def form_of(structure):
    """A text that identifies arguments of this kind, or of this signature.

    It does not use str() of the program's classes and of numpy, which may leave out values that forward reads.
    """
    return _form(structure, _type_of)


@structures.typed_nesting
def form_and_tensors(structure):
    """form_of(structure), and its tensors, depth first."""
    tensors = []

    def of_tensor(tensor):
        tensors.append(tensor)
        return _type_of(tensor)

    return _form(structure, of_tensor), tensors


@structures.typed_nesting
def form_of_kinds(structure):
    """form_of(structure), with a letter for each tensor in place of its type."""
    return _form(structure, lambda tensor: "t")


_BARE = {list: "", SequenceType: "", dict: "", tuple: "tuple"}  # containers without attributes


def _form(structure, of_tensor):
    kind = type(structure)
    parts = structures.parts_of(structure)  # first, because it is slower to ask whether a container is a tensor
    if parts is None:
        is_tensor = isinstance(structure, torch.Tensor)
        return of_tensor(structure) if is_tensor else _form_of_leaf(kind, structure, of_tensor)
    name = _BARE.get(kind)
    if name is None:
        name = f"{_objects.kind_text(kind)}{_attributes_text(structure)}"
    if isinstance(structure, dict):
        items = [f"{_objects.text_of(key)}: {_form(part, of_tensor)}" for key, part in structure.items()]
        return f"{name}{{{', '.join(items)}}}"
    return f"{name}[{', '.join([_form(part, of_tensor) for part in parts])}]"


def _form_of_leaf(kind, leaf, of_tensor):
    if kind in (TensorType, ParsedType, ConstantForm, _objects.SlotOf):
        return repr(leaf)
    if kind is SetItems:
        return _objects.text_of_items(leaf.kind, leaf.items)
    if structures.parser_for(leaf) is None:
        return _objects.text_of(leaf)
    return _parsed_form(kind, map(of_tensor, structures.flattenTensorStructure(leaf)), _objects.plain_text(leaf))


def _parsed_form(kind, tensors, values):
    return f"{_objects.kind_text(kind)}<{', '.join(tensors)}> {values}"


def _attributes_text(container):
    """The plain attributes of a container of the program's class, apart from its items."""
    held = structures.own_attributes(container)
    return _objects.plain_text(held) if held else ""


@structures.typed_nesting
def order_of(structure):
    """Lists the keys of the dictionaries in it, in their order. Forward may depend on the order."""
    parts = structures.parts_of(structure)
    if not parts:
        return ""
    if isinstance(structure, dict):
        return "".join(f"{_objects.text_of(key)}({order_of(value)})" for key, value in structure.items())
    orders = list(map(order_of, parts))
    return f"[{', '.join(orders)}]" if any(orders) else ""


@structures.typed_nesting
def has_dict(structure):
    """True if a dict is somewhere in the structure."""
    return any(isinstance(container, dict) for container in structures.containers_in(structure))
