"""Answers questions about devices. The original hardware is absent; CPU devices replace it (src/calls/devices.h).

Source: spec environment.md, section 7.
"""

from ._errors import refused
from ._native import core


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """True if this many devices exist. False if a simulator variable is set."""
    return core().ipuHardwareIsAvailable(num_ipus)


def ipuHardwareVersion() -> int:
    """2, so that programs written for this generation run."""
    if core().numDevices() <= 0:
        raise refused(AssertionError, "no devices: ABELE_EMULATED_DEVICES is 0")
    return core().ipuHardwareVersion()
