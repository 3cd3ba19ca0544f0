"""Pickles that hold data only. Reading one imports nothing, and calls only constructors of plain containers.

Tensors are structure here: the pickle keeps their element type and shape, but not their contents. For options it keeps
the classes and the attributes that a program's own class adds. The values of options are a text of the file. The list
of classes that users allow for torch.load(weights_only=True) applies here too.
"""

import enum
import functools
import io
import pickle
import sys

import torch

from . import structures
from ._native import core

# Modules whose classes describe a program. The compatibility package shows some of them under another name, and files
# hold the name that a class had when they were written.
_OURS = frozenset(f"{__package__}.{name}" for name in ("_arguments", "enums", "options"))
_PACKAGES = frozenset((__package__, "poptorch"))
_PLAIN = frozenset((set, frozenset, complex, slice, torch.device, torch.Size))
_CONTAINERS = (tuple, list, dict, enum.Enum)


class UnknownClass(pickle.UnpicklingError):
    """A name that is not a class of plain data."""


def dumps(value):
    """The value as bytes. Raises the errors of pickle."""
    out = io.BytesIO()
    _Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return out.getvalue()


def loads(data, options):
    """The value that dumps() wrote. Raises UnknownClass, and other errors for bytes that dumps() did not write.

    Args:
        options: the native values of the options in it.
    """
    return _Unpickler(io.BytesIO(data), options).load()


class _Pickler(pickle.Pickler):
    def persistent_id(self, obj):
        if isinstance(obj, torch.Tensor):
            return "tensor", str(obj.dtype).removeprefix("torch."), tuple(obj.shape)
        if isinstance(obj, torch.dtype):
            return "dtype", str(obj).removeprefix("torch.")
        return ("options",) if isinstance(obj, core().OptionValues) else None


def _dtype(name):
    dtype = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(dtype, torch.dtype):
        raise UnknownClass(f"the element type {name!r}")
    return dtype


def _home_of(module):
    """The module of this package for a module's name in files. Other names are returned unchanged."""
    package, _, name = module.partition(".")
    home = f"{__package__}.{name}"
    return home if package in _PACKAGES and home in _OURS else module


def _is_plain(found, module):
    if not isinstance(found, type):
        return False
    if found in _PLAIN or found in torch.serialization.get_safe_globals():
        return True
    if module in _OURS:
        return _home_of(found.__module__) == module
    if any(_home_of(base.__module__) in _OURS for base in found.__mro__):
        return True  # a class of the program that derives from ours, such as popdist's options
    return issubclass(found, (*_CONTAINERS, *structures.PARSERS))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, options):
        super().__init__(file)
        self._options = options

    def find_class(self, module, name):
        """A class that is loaded already. A search must not import a module, because that would run code."""
        home = _home_of(module)
        try:
            found = functools.reduce(getattr, name.split("."), sys.modules[home])
        except (KeyError, AttributeError):
            found = None
        if not _is_plain(found, home):
            raise UnknownClass(f"{module}.{name}")
        return found

    def persistent_load(self, pid):
        kind, *rest = pid
        if kind == "options":
            return self._options
        if kind == "dtype":
            return _dtype(*rest)
        dtype, shape = rest
        if not all(isinstance(size, int) and size >= 0 for size in shape) or (shape and min(shape) > 0):
            shape = (0,)  # because a structure holds no memory
        return torch.empty(shape, dtype=_dtype(dtype))
