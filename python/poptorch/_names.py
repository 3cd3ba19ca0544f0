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
    "data",
    "executor",
)


def publish():
    """Called once, by the import of the package, before anything else of it is imported."""
    package = sys.modules[__package__]
    for name in _ABELES:
        module = importlib.import_module(f"abele.{name}")
        public = f"{__package__}.{name}"
        for value in vars(module).values():
            if isinstance(value, (type, types.FunctionType)) and value.__module__ == module.__name__:
                value.__module__ = public
        sys.modules[public] = module
        setattr(package, name, module)
