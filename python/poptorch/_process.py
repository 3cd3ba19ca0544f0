"""What importing the package does to the process.

Source: spec environment.md, section 1.
"""

import atexit
import faulthandler
import gc
import io
import signal
import subprocess
import sys

from ._logging import logger


def poptorchAtExit():
    """Lets executors that nobody holds any more end before the interpreter does."""
    gc.collect()


def _logUncaught(previous):
    def hook(kind, value, traceback):
        if issubclass(kind, Exception):
            logger.critical("uncaught exception: %s", value)
            if isinstance(value, subprocess.CalledProcessError) and value.output:
                logger.critical("output of the process: %s", value.output)
        previous(kind, value, traceback)

    return hook


def start():
    """Called once, by the import of the package."""
    try:
        faulthandler.enable()
        if hasattr(faulthandler, "register"):
            faulthandler.register(signal.SIGTERM, chain=True)
    except (AttributeError, ValueError, io.UnsupportedOperation):
        logger.debug("standard error is no file: no traceback is printed at a fault")
    sys.excepthook = _logUncaught(sys.excepthook)
    atexit.register(poptorchAtExit)
