"""Which devices a program runs on. Source: spec options.md, section 2: useIpuId, logCycleCount."""

from . import _devices
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
