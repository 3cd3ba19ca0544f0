"""The modules of this package that are Abele's own. poptorch.optim is abele.optim; its definitions have PopTorch's
module name in tracebacks, representations and pickles. For type checkers there are `.pyi` files beside this one.
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
    """Called once, at the start of the import of the package."""
    for name in _ABELES:
        show(importlib.import_module(f"abele.{name}"), name)


def show(module, name):
    """Makes the module poptorch.<name>, and sets it as the module of its definitions."""
    public = f"{__package__}.{name}"
    for value in vars(module).values():
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == module.__name__:
            value.__module__ = public
    sys.modules[public] = module
    setattr(sys.modules[__package__], name, module)
