"""Logging: the Python logger and its level.

Source: spec environment.md, section 2.
"""

import logging
import os
import sys

# name -> (level of earlier versions, Python level). Names with a leading "_" are not public.
_LEVELS = {
    "TRACE": (0, logging.DEBUG),
    "DEBUG": (1, logging.DEBUG),
    "INFO": (2, logging.INFO),
    "WARN": (3, logging.WARNING),
    "ERR": (4, logging.ERROR),
    "OFF": (6, logging.CRITICAL),
}
_INTERNAL = {"TRACE_ALL": logging.DEBUG, "DEBUG_IR": logging.DEBUG}
_COLOURS = {"debug": 36, "info": 32, "warning": 33, "error": 31, "critical": 31}

logger = logging.getLogger("poptorch::python")


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
    """Writes to the sys.stderr of the moment, so that redirections are honoured."""

    def __init__(self):
        logging.Handler.__init__(self)
        self.setFormatter(_Formatter())

    @property
    def stream(self):
        return sys.stderr


def setLogLevel(level):
    """How much is logged: TRACE, DEBUG, INFO, WARN, ERR or OFF, or the numbers 0, 1, 2, 3, 4, 6.

    Raises:
        ValueError: unknown level.
    """
    if isinstance(level, str):
        found = _INTERNAL.get(level) or (_LEVELS[level][1] if level in _LEVELS else None)
    else:
        found = next((python for number, python in _LEVELS.values() if number == level), None)
    if found is None:
        raise ValueError(f"unknown log level {level!r}; known: {', '.join(_LEVELS)}")
    logger.setLevel(found)


if not logger.handlers:
    logger.addHandler(_Handler())
setLogLevel(os.environ.get("POPTORCH_LOG_LEVEL") or "WARN")
