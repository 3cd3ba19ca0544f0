"""Answers to questions about devices. There is no such hardware: CPU devices stand for it.

Source: spec environment.md, section 7. ABELE_EMULATED_DEVICES says how many devices programs are told of (default 64,
the largest number a model may use; 0: none).
"""

import os

from ._errors import userError

_VERSION = 2
_MAX_DEVICES = 64


def _numDevices():
    text = os.environ.get("ABELE_EMULATED_DEVICES", str(_MAX_DEVICES))
    try:
        return int(text)
    except ValueError:
        raise userError("E0702", "option-value", f"ABELE_EMULATED_DEVICES is {text!r}", expected="an integer") from None


def _simulatorIsChosen():
    return any(
        os.environ.get(name, "0") not in ("", "0") for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
    )


def ipuHardwareIsAvailable(num_ipus=1):
    """True if so many devices exist. False when a simulator variable is set."""
    return not _simulatorIsChosen() and num_ipus <= _numDevices()


def ipuHardwareVersion():
    """2: programs written for this generation run."""
    assert _numDevices() > 0, "no devices: ABELE_EMULATED_DEVICES is 0"
    return _VERSION
