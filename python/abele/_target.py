"""Which device a program is compiled for, and settings of it that contradict each other.

Source: spec options.md, section 2: useOfflineIpuTarget, useIpuModel, useIpuId, logCycleCount.
"""

from . import _devices, _environment
from ._errors import userError
from ._logging import logger


def countsCycles(options):
    """True if logCycleCount is on."""
    return bool(options._Popart.options.get("instrumentWithHardwareCycleCounter"))


def _groupSize(ipu_id):
    """Devices of the group with this id: the single ones come first, then the pairs, the fours, ..."""
    first, size = 0, 1
    while size <= _devices._numDevices():
        count = _devices._numDevices() // size
        if first <= ipu_id < first + count:
            return size
        first, size = first + count, size * 2
    raise userError(
        "E0402", "device-range", f"there is no device group with id {ipu_id}", expected=f"an id in 0..{first - 1}"
    )


def requireTarget(options):
    """Raises poptorch.Error for settings of the target that contradict each other, before anything is compiled."""
    offline, cycles = options.exists("ipu_version"), countsCycles(options)
    contradictions = {
        "the simulator (useIpuModel, POPTORCH_IPU_MODEL)": offline and _environment.usesSimulator(options),
        "useIpuId": offline and options.exists("ipu_id"),
        "logCycleCount": offline and cycles,
    }
    for name, is_used in contradictions.items():
        if is_used:
            raise userError(
                "E0702", "option-value", f"useOfflineIpuTarget and {name} cannot be combined", remedy="remove one"
            )
    if cycles and _environment.usesSimulator(options):
        raise userError(
            "E0702", "option-value", "logCycleCount: the simulator counts no cycles", remedy="remove one of the two"
        )
    if options.exists("ipu_id"):
        _groupSize(options.ipu_id)


def requireGroup(options, num_devices):
    """Raises poptorch.Error if the group chosen by useIpuId has fewer devices than the model uses."""
    if not options.exists("ipu_id"):
        return
    size = _groupSize(options.ipu_id)
    if size < num_devices:
        raise userError(
            "E0402",
            "device-range",
            f"the device group {options.ipu_id} is too small",
            found=f"{size} devices",
            expected=f"{num_devices} devices or more",
            remedy="opts.useIpuId of a larger group, or leave the choice to poptorch",
        )
    if size > num_devices:
        logger.warning("device group %d has %d devices, the model uses %d", options.ipu_id, size, num_devices)
