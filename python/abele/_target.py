"""Which devices a program runs on. Source: spec options.md, section 2: useIpuId, logCycleCount."""

from . import _devices
from ._errors import userError
from ._logging import logger


def countsCycles(options):
    """True if logCycleCount is on."""
    return bool(options._Popart.options.get("instrumentWithHardwareCycleCounter"))


def _groupSize(ipu_id):
    """Devices of the group with this id."""
    groups = _devices.deviceGroups()
    if not 0 <= ipu_id < len(groups):
        expected = f"an id in 0..{len(groups) - 1}"
        raise userError("E0402", "device-range", f"there is no device group with id {ipu_id}", expected=expected)
    return len(groups[ipu_id])


def requireTarget(options):
    """Raises poptorch.Error if useIpuId names no group of devices."""
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
