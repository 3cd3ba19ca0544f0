"""The modules of this package that are Abele's own: poptorch.optim is abele.optim, and what it defines shows itself
under PopTorch's name, in tracebacks, representations and pickles. A `.pyi` beside this file says so to type checkers.
"""

import importlib
import sys
import types

_ABELES = (
    "enums",
    "_errors",
    "_logging",
    "strategies",
    "options",
    "optim",
    "structures",
    "profiling",
    "annotations",
    "losses",
    "wrapping",
    "control_flow",
    "custom_ops",
    "multi_conv",
    "ops",
    "_async_accessor",
)


def publish():
    """Called once, by the import of the package, before anything else of it is imported."""
    for name in _ABELES:
        show(importlib.import_module(f"abele.{name}"), name)


def show(module, name):
    """Makes the module poptorch.<name> and the home of what it defines."""
    public = f"{__package__}.{name}"
    for value in vars(module).values():
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == module.__name__:
            value.__module__ = public
    sys.modules[public] = module
    setattr(sys.modules[__package__], name, module)
