"""Logging: the Python logger, its level and the level of the native log.

Source: spec environment.md, section 2.
"""

import logging
import multiprocessing
import os
import sys

from ._exceptions import refused

# name -> (level of earlier versions, Python level).
_LEVELS = {
    "TRACE": (0, logging.DEBUG),
    "DEBUG": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, logging.CRITICAL),
}
# Not public: TRACE and DEBUG with more detail in the native log.
_INTERNAL = {"TRACE_ALL": logging.DEBUG, "DEBUG_IR": logging.DEBUG}
_COLOURS = {"debug": 36, "info": 32, "warning": 33, "error": 31, "critical": 31}

logger = logging.getLogger("poptorch::python")
_native_level = None  # set before the native module was loaded
_native = None


class _Formatter(logging.Formatter):
    """`[HH:MM:SS.mmm] [poptorch::python] [level] message`."""

    def __init__(self):
        super().__init__("[%(asctime)s.%(msecs)03d] [%(name)s] [%(levelname)s] %(message)s", "%H:%M:%S")
        self._colours = sys.stdout.isatty() and sys.stderr.isatty()

    def format(self, record):
        name = record.levelname
        record.levelname = name.lower()
        if self._colours:
            record.levelname = f"\x1b[{_COLOURS.get(record.levelname, 0)}m{record.levelname}\x1b[0m"
        text = super().format(record)
        record.levelname = name
        return text


class _Handler(logging.StreamHandler):
    """Writes to the present sys.stderr, so that redirections take effect."""

    def __init__(self):
        logging.Handler.__init__(self)
        self.setFormatter(_Formatter())

    @property
    def stream(self):
        return sys.stderr


def _name_of(level):
    """The name of a level.

    Raises:
        ValueError: the level is unknown; the text lists the public names.
    """
    if isinstance(level, str):
        if level in _LEVELS or level in _INTERNAL:
            return level
    elif isinstance(level, int) and not isinstance(level, bool):
        for name, (number, _) in _LEVELS.items():
            if number == level:
                return name
    raise refused(ValueError, f"unknown log level {level!r}; known: {', '.join(_LEVELS)}")


def setLogLevel(level: str | int) -> None:
    """Sets how much is logged: TRACE, DEBUG, INFO, WARN, ERR or OFF, or the numbers 0, 1, 2, 3, 4, 6.

    Raises:
        ValueError: unknown level.
    """
    name = _name_of(level)
    logger.setLevel(_LEVELS[name][1] if name in _LEVELS else _INTERNAL[name])
    _set_native(name)


def setPopartLogLevel(level):
    """Sets how much the native part logs. The Python logger does not change.

    Raises:
        ValueError: not the name of a level.
    """
    if not isinstance(level, str):
        raise refused(ValueError, f"a log level is a str here, got {level!r}; known: {', '.join(_LEVELS)}")
    _set_native(_name_of(level))


def _set_native(name):
    global _native_level
    if _native is None:
        _native_level = name
    else:
        _native.setLogLevel(name)


def connect_native(module):
    """Gives the native module the level. Called when the module was loaded."""
    global _native
    _native = module
    module.setNoteReceiver(logger.log)
    # Setting the level opens the file of POPTORCH_LOG_DEST, which a process that loads data must not empty.
    if _native_level is not None and multiprocessing.parent_process() is None:
        module.setLogLevel(_native_level)


if not logger.handlers:
    logger.addHandler(_Handler())
setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL") or "WARN")
