"""Structures of arguments and results as text that C++ reads too (include/abele/structure.h), and back.

t is a tensor, - None, [...] a tuple or list, {<length>:<key><value>...} a dict, =<length>:<text> any other value.
Lengths are in bytes of UTF-8.
"""

import torch

from . import structures
from ._arguments import ConstantForm, SequenceType, TensorType, constant_form
from ._native import core


def form_of(structure):
    """The form of a structure, such as forward's results."""
    if isinstance(structure, torch.Tensor):
        return "t"
    if structure is None:
        return "-"
    if structures.parser_for(structure) is not None:
        return f"[{'t' * len(structures.flattenTensorStructure(structure))}]"
    if isinstance(structure, dict):
        return f"{{{''.join(_counted(str(key)) + form_of(value) for key, value in structure.items())}}}"
    if isinstance(structure, (list, tuple)):
        return f"[{''.join(map(form_of, structure))}]"
    return constant_form(structure)


def _counted(text):
    return f"{len(text.encode())}:{text}"


def form_of_call(positional, named):
    """The form of a call: named arguments are a dict after the others."""
    return ("".join(map(form_of, positional)) + (form_of(named) if named else "")).rstrip("-")


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


def _empty():
    return torch.empty(0)


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
    arguments = core().formValues(form, tensor=_empty, constant=_constant, sequence=tuple)
    return (arguments, {}), (SequenceType(signature), {})


def result_of(form):
    """The results of a C++ forward, with empty tensors."""
    return core().formValues(form, tensor=_empty, constant=_constant, sequence=tuple)[0]
