"""Access to the native module, and what the package does to the process: it loads this module, and registers one
function for its end. Everything else of the process stays as it is: docs/process.md.
"""

import atexit
import functools
import gc
import importlib
import os
import sys

from . import _logging
from ._exceptions import create_native_error, refused

_NAME = "abele._abele"


def core():
    """The native module, loaded at the first call."""
    module = sys.modules.get(_NAME)
    if module is None:
        import torch  # first, because the native module needs its libraries

        try:
            module = importlib.import_module(_NAME)
        except ImportError as error:
            raise ImportError(
                f"the native part of Abele could not be loaded: {error}\n  try       build the target "
                "abele_python, or install the wheel made for this version of torch"
            ) from error
        if _release(module.torch_version) != _release(torch.__version__):
            raise refused(
                AssertionError,
                f"Abele was built for torch {module.torch_version}, this is torch {torch.__version__}: install the "
                "wheel made for it, or build the target abele_python again",
            )
        module.setErrorFactory(create_native_error)
        _logging.connect_native(module)
        _lend_device_graphs(module, torch)
    return module


def _lend_device_graphs(module, torch):
    """torch's C++ classes have graphs for all kinds of devices since 2.13; for older versions, Python's classes are
    used."""
    if not hasattr(torch.accelerator, "Graph"):
        module.lendDeviceGraphs("cuda", torch.cuda.CUDAGraph)


def _release(version):
    """Major and minor number, because torch's C++ interfaces change with them."""
    return version.split("+")[0].split(".")[:2]


def isCapturing() -> bool:
    """True while a model's forward is captured on this thread."""
    module = sys.modules.get(_NAME)
    return module is not None and module.isCapturing()


def poptorchAtExit():
    """Lets executors that are out of use end before the interpreter does."""
    gc.collect()


@functools.cache
def start():
    """Called by the import of poptorch and by the first use of anything of abele; only the first call counts.

    Raises:
        ImportError: the native module is missing.
        AssertionError: it was built for another torch.
    """
    core()
    atexit.register(poptorchAtExit)


# Code in these folders is not the user's: messages name the first line outside of them.
PACKAGE_FOLDERS = []


def add_package_folder(file):
    """Marks the package of this __init__.py as part of the product."""
    PACKAGE_FOLDERS.append(os.path.dirname(os.path.abspath(file)) + os.sep)


add_package_folder(__file__)
