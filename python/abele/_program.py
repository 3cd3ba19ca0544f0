"""A compiled program's arguments and results: their structures, also as text that C++ reads, and how results get the
form that forward gave them."""

import torch

from . import _objects, structures
from ._arguments import (
    ConstantForm,
    HeldObjects,
    SequenceType,
    TensorType,
    constant_form,
    form_of,
    order_of,
    require_same,
    signature_of,
)
from ._native import core
from ._results import mark_returned


def native_form_of(structure):
    """A structure as text that C++ reads too (include/abele/structure.h).

    t is a tensor, - None, [...] a tuple or list, {<length>:<key><value>...} a dict, =<length>:<text> any other value.
    Lengths are in bytes of UTF-8.
    """
    if isinstance(structure, torch.Tensor):
        return "t"
    if structure is None:
        return "-"
    if structures.parser_for(structure) is not None:
        return f"[{'t' * len(structures.flattenTensorStructure(structure))}]"
    if isinstance(structure, dict):
        return f"{{{''.join(_counted(str(key)) + native_form_of(value) for key, value in structure.items())}}}"
    if isinstance(structure, (list, tuple)):
        return f"[{''.join(map(native_form_of, structure))}]"
    return constant_form(structure)


def _counted(text):
    return f"{len(text.encode())}:{text}"


def form_of_call(positional, named):
    """The form of a call: named arguments are a dict after the others."""
    return ("".join(map(native_form_of, positional)) + (native_form_of(named) if named else "")).rstrip("-")


def _constant(text):
    """The value of a constant's text in a form."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"'):
        return text[1:-1]
    try:
        return int(text)
    except ValueError:
        return float(text)


def arguments_of(form, types):
    """(arguments with empty tensors, their signature) of a program that C++ saved.

    Args:
        types: (element type, sizes) of each tensor of a call.
    """
    left = iter(types)
    signature = core().formValues(
        form,
        tensor=lambda: TensorType.of(*next(left)),
        constant=lambda text: ConstantForm(f"={_counted(text)}"),
        sequence=SequenceType,
    )
    arguments = core().formValues(form, tensor=lambda: torch.empty(0), constant=_constant, sequence=tuple)
    return (arguments, {}), (SequenceType(signature), {})


def result_of(form):
    """The results of a C++ forward, with empty tensors."""
    return core().formValues(form, tensor=lambda: torch.empty(0), constant=_constant, sequence=tuple)[0]


class Program:
    """The facts about a program's calls that only Python has. Threads: one caller at a time."""

    def __init__(self, arguments, signature, result=None, keys_are_sorted=False):
        self.arguments = arguments  # structure of the call, with empty tensors
        self.signature = signature  # the same with types, for later calls
        self.result = result  # structure of the result, with empty tensors
        self.keys_are_sorted = keys_are_sorted  # those of dictionaries, as in C++; else their order is the call's
        self.form = form_of(signature)
        self.order = "" if keys_are_sorted else order_of(signature)
        self.objects = None  # Opened: what forward returned or changed of objects; None: nothing
        self.replaced = []  # buffers that forward replaces
        self.buffers = frozenset()  # names of all
        self.held = None  # HeldObjects: those among the arguments that are constants; None: not compiled here

    @classmethod
    def of(cls, given):
        """A Program for a call that will be compiled. given: its (positional, named) arguments as the user passed
        them."""
        program = cls(structures.skeleton(given), signature_of(given))
        program.held = HeldObjects(given)
        return program

    @property
    def replaced_names(self):
        """Names of buffers that forward replaces."""
        return [each.path for each in self.replaced]

    def has_objects(self):
        """Whether forward takes or returns objects with tensors inside. Buffers whose shape changes count as such."""
        positional = self.arguments[0]
        return (
            any(each.is_reshaped for each in self.replaced)
            or self.objects is not None
            or bool(positional and isinstance(positional[-1], _objects.Opened))
        )

    def description(self):
        """The arguments that make an equal Program, for files."""
        names = ("arguments", "signature", "result", "keys_are_sorted")
        return {name: getattr(self, name) for name in names}

    def forms(self):
        """Arguments and result in the form that C++ reads."""
        return form_of_call(*self.arguments), native_form_of(self.result)

    def order_of(self, given):
        """The order of the keys in a call's arguments, which another program may have.

        Raises E0704 unless the call fits this program. A call of the same form does; others may, such as one with
        tensors of other strides.
        """
        is_same = form_of(given) == self.form
        if not is_same:
            require_same("positional arguments", self.signature[0], given[0])
            require_same("named arguments", self.signature[1], given[1])
        if self.held is not None:
            self.held.require_same(given)
        return self.order if is_same or self.keys_are_sorted else order_of(given)

    def result_of(self, outputs, opened=None):
        """The outputs of a step in the structure that forward returned.

        Args:
            opened: the objects of the call; None: it had none. They change as forward changes them.
        """
        mark_returned(outputs)
        left = iter(outputs)
        if isinstance(self.result, torch.Tensor):
            result = next(left)
        else:
            result = structures.reconstructTensorStructure(self.result, left)
        return result if self.objects is None else _objects.close_result(result, self.objects, opened, list(left))
