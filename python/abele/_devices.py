"""Answers to questions about devices. There is no such hardware: CPU devices stand for it.

Source: spec environment.md, section 7. ABELE_EMULATED_DEVICES says how many devices programs are told of (default 64,
the largest number a model may use; 0: none).
"""

from __future__ import annotations

from . import _environment
from ._errors import refused, userError
from .enums import ConnectionType

_VERSION = 2
_MAX_DEVICES = 64


def numDevices() -> int:
    """Devices that programs are told of."""
    return _environment.integer("ABELE_EMULATED_DEVICES", _MAX_DEVICES)


def deviceGroups() -> list[range]:
    """The devices of each group, by the id of the group: single ones come first, then pairs, fours, ..."""
    groups, size = [], 1
    while size <= numDevices():
        groups += [range(first, first + size) for first in range(0, numDevices() - size + 1, size)]
        size *= 2
    return groups


def ipuHardwareIsAvailable(num_ipus: int = 1) -> bool:
    """True if so many devices exist. False when a simulator variable is set."""
    return not _environment.simulatorIsChosen() and num_ipus <= numDevices()


def ipuHardwareVersion() -> int:
    """2: programs written for this generation run."""
    if not (numDevices() > 0):
        raise refused(AssertionError, "no devices: ABELE_EMULATED_DEVICES is 0")
    return _VERSION


def requireDevices(options, number):
    """Raises poptorch.Error if a model that runs on devices asks for more than there are."""
    if options.connection_type == ConnectionType.Never or _environment.usesSimulator(options):
        return
    if number > numDevices():
        raise userError(
            "E0402",
            "device-range",
            f"the model uses {number} devices",
            expected=f"at most {numDevices()} (ABELE_EMULATED_DEVICES)",
        )
