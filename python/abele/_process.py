"""Importing the package loads the native module, and registers one function for the end of the process.

Everything else of the process stays as it is: docs/process.md.
"""

import atexit
import gc

from . import _native


def poptorchAtExit():
    """Lets executors that nobody holds any more end before the interpreter does."""
    gc.collect()


_has_started = False


def start():
    """Called by the import of poptorch and by the first use of anything of abele; only the first call counts.

    Raises:
        ImportError: the native module is missing.
        AssertionError: it was built for another torch.
    """
    global _has_started
    if _has_started:
        return
    _native.core()
    _has_started = True
    atexit.register(poptorchAtExit)
