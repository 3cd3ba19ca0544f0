"""Access to the native module. Nothing can be captured before it is loaded, so annotations never load it."""

import importlib
import os
import sys

_NAME = "abele._abele"


def core():
    """The native module, loaded at the first call."""
    module = sys.modules.get(_NAME)
    if module is None:
        import torch  # noqa: F401  (its libraries must be loaded first)

        try:
            module = importlib.import_module(_NAME)
        except ImportError as error:
            raise ImportError(
                f"the native part of Abele could not be loaded: {error}\n  try       build the target "
                "abele_python, or install the wheel made for this version of torch"
            ) from error
    return module


def isCapturing():
    """True while a model's forward is captured on this thread."""
    module = sys.modules.get(_NAME)
    return module is not None and module.isCapturing()


PACKAGE_FOLDERS = [
    os.path.dirname(os.path.abspath(__file__)) + os.sep,
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "abele") + os.sep,
]
