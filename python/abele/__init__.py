"""Abele: model-parallel compiler and runtime for PyTorch.

Pipelines of any length, any number of devices, and one compiled program per shape of the inputs. The package `poptorch`
is the same product under PopTorch's names and with its limits. Names are loaded at their first use: __init__.pyi, which
type checkers read too, says which module defines each.
"""

import importlib
import pathlib
import re

from ._version import __version__ as __version__

_stub = pathlib.Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")
_HOME_OF = {name: home for home, name in re.findall(r"^from \.(\w*) import (\w+) as", _stub, re.M)}  # "": a module

__all__ = sorted(_HOME_OF)


def __getattr__(name):
    if name not in _HOME_OF:
        raise AttributeError(f"module 'abele' has no attribute {name!r}")
    if not _HOME_OF[name]:
        return importlib.import_module(f"abele.{name}")
    importlib.import_module("abele._native").start()
    value = getattr(importlib.import_module(f"abele.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return __all__
