"""What importing the package does to the process.

Source: spec environment.md, section 1.
"""

import atexit
import faulthandler
import gc
import io
import os
import signal
import subprocess
import sys
import traceback

from . import _native
from ._logging import logger


def poptorchAtExit():
    """Lets executors that nobody holds any more end before the interpreter does."""
    gc.collect()


def _logUncaught(previous):
    def hook(kind, value, trace):
        if not issubclass(kind, Exception):
            previous(kind, value, trace)  # Ctrl-C is no failure
            return
        text = "".join(traceback.format_exception(kind, value, trace)).rstrip()
        if isinstance(value, subprocess.CalledProcessError):
            for name, output in (("output", value.stdout), ("error output", value.stderr)):
                if output:
                    text += f"\n{name} of the process:\n{output.decode() if isinstance(output, bytes) else output}"
        logger.critical("%s", text)
        if previous is not sys.__excepthook__:
            previous(kind, value, trace)  # of a debugger or an error reporter

    return hook


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
    os.environ.setdefault("RDMAV_FORK_SAFE", "1")
    _native.core()
    _has_started = True
    try:
        faulthandler.enable()
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGTERM, chain=True)
    except (AttributeError, RuntimeError, ValueError, io.UnsupportedOperation):
        logger.debug("standard error is closed, or no file: no traceback is printed at a fault")
    sys.excepthook = _logUncaught(sys.excepthook)
    atexit.register(poptorchAtExit)
