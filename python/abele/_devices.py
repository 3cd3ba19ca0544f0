"""Answers to questions about devices. There is no such hardware: CPU devices stand for it (src/model/devices.h).

Source: spec environment.md, section 7.
"""

from __future__ import annotations

from ._errors import refused
from ._native import core


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """True if so many devices exist. False when a simulator variable is set."""
    return core().ipuHardwareIsAvailable(num_ipus)


def ipuHardwareVersion() -> int:
    """2: programs written for this generation run."""
    if core().numDevices() <= 0:
        raise refused(AssertionError, "no devices: ABELE_EMULATED_DEVICES is 0")
    return core().ipuHardwareVersion()
