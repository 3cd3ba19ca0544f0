"""Structures of arguments and results as text that C++ reads too (include/abele/structure.h), and back.

t is a tensor, - None, [...] a tuple or list, {<length>:<key><value>...} a dict, =<length>:<text> any other value.
Lengths are in bytes of UTF-8.
"""

import torch

from . import structures
from ._arguments import ConstantForm, SequenceType, TensorType, constantForm


def _formOf(structure):
    if isinstance(structure, torch.Tensor):
        return "t"
    if structure is None:
        return "-"
    if structures.parserFor(structure) is not None:
        return f"[{'t' * len(structures.flattenTensorStructure(structure))}]"
    if isinstance(structure, dict):
        return f"{{{''.join(_counted(str(key)) + _formOf(value) for key, value in structure.items())}}}"
    if isinstance(structure, (list, tuple)):
        return f"[{''.join(map(_formOf, structure))}]"
    return constantForm(structure)


def _counted(text):
    return f"{len(text.encode())}:{text}"


def formOfCall(positional, named):
    """The form of a call: named arguments are a dict behind the others."""
    return ("".join(map(_formOf, positional)) + (_formOf(named) if named else "")).rstrip("-")


def formOfResult(result):
    """The form of what forward returned."""
    return _formOf(result)


class _Reader:
    def __init__(self, form):
        self._form = form.encode()
        self._at = 0

    def all(self, leaf, sequence):
        """The values of the form. leaf(text): of a tensor (None) or of another value; sequence(list): of a list."""
        values = []
        while self._at < len(self._form):
            values.append(self._value(leaf, sequence))
        return values

    def _value(self, leaf, sequence):
        kind = self._form[self._at : self._at + 1]
        self._at += 1
        if kind == b"-":
            return None
        if kind == b"t":
            return leaf(None)
        if kind == b"=":
            return leaf(self._text())
        items, end = [], b"]" if kind == b"[" else b"}"
        while self._form[self._at : self._at + 1] != end:
            key = self._text() if kind == b"{" else None
            items.append((key, self._value(leaf, sequence)))
        self._at += 1
        return dict(items) if kind == b"{" else sequence([value for _, value in items])

    def _text(self):
        colon = self._form.index(b":", self._at)
        begin, length = colon + 1, int(self._form[self._at : colon])
        self._at = begin + length
        return self._form[begin : self._at].decode()


def _constant(text):
    """A value from its text in a form."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"'):
        return text[1:-1]
    try:
        return int(text)
    except ValueError:
        return float(text)


def _emptyOr(text):
    return torch.empty(0) if text is None else _constant(text)


def argumentsOf(form, types):
    """(arguments with empty tensors, their signature) of a program that C++ saved.

    Args:
        types: (element type, sizes) of each tensor of a call.
    """
    left = iter(types)
    signature = _Reader(form).all(
        lambda text: TensorType.of(*next(left)) if text is None else ConstantForm(f"={_counted(text)}"), SequenceType
    )
    return (_Reader(form).all(_emptyOr, tuple), {}), (SequenceType(signature), {})


def resultOf(form):
    """What forward of C++ returned, with empty tensors."""
    return _Reader(form).all(_emptyOr, tuple)[0]
