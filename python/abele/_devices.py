"""Answers to questions about devices. There is no such hardware: CPU devices stand for it (src/model/devices.h).

Source: spec environment.md, section 7.
"""

from __future__ import annotations

from typing import Any

from ._errors import refused
from ._native import core


def numDevices() -> int:
    """Devices that programs are told of."""
    return core().numDevices()


def deviceGroups() -> list[range]:
    """The devices of each group, by the id of the group: single ones come first, then pairs, fours, ..."""
    return [range(first, first + count) for first, count in core().deviceGroups()]


def attached() -> list[dict[str, Any]]:
    """Models that have devices now, of all processes of this machine: pid, user, command, model, steps, devices, ..."""
    return core().attached()


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """True if so many devices exist. False when a simulator variable is set."""
    return core().ipuHardwareIsAvailable(num_ipus)


def ipuHardwareVersion() -> int:
    """2: programs written for this generation run."""
    if numDevices() <= 0:
        raise refused(AssertionError, "no devices: ABELE_EMULATED_DEVICES is 0")
    return core().ipuHardwareVersion()
