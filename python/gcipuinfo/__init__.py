"""Attributes of the devices that programs see, as `gc-inventory` prints them.

The devices are emulated by cores of this machine. Sensors are "N/A"; load and owners are those of the running programs
(docs/guide/monitoring.md). Source: spec tools.md, gc-inventory and gcipuinfo.
"""

import difflib
import json
from collections.abc import Iterator

from abele._logging import logger
from abele._native import core

_OF_OWNERS = ("user executable", "user name", "user process id")  # only a device in use has them


class gcipuinfo:
    """The devices, single ones before groups of several, as they were when the object was made."""

    def __init__(self) -> None:
        self._updates = False
        self._devices: list[dict[str, str]] = core().deviceAttributes()

    def setUpdateMode(self, update: bool) -> None:
        """Sets whether each request reads the attributes again."""
        self._updates = update

    def getDevices(self) -> list[dict[str, str]]:
        """The attributes of each device by name, such as "ipu utilisation"."""
        if self._updates:
            self._devices = core().deviceAttributes()
        return [dict(device) for device in self._devices]

    def getDevicesAsJSON(self) -> str:
        """The same as text: an object whose "devices" is a list of objects."""
        return json.dumps({"devices": self.getDevices()})

    def getNamedAttributeForAll(self, label: str) -> list[str]:
        """One attribute of each device; "N/A" for a device without it, for example the owner of a device that is free.

        A name that no device can have is a warning, with the one that is most like it.
        """
        devices = self.getDevices()
        known = {*_OF_OWNERS, *(name for device in devices for name in device)}
        if label not in known:
            alike = difflib.get_close_matches(str(label), known, 1)
            logger.warning(
                "gcipuinfo: no device has an attribute %r%s: every answer is N/A",
                label,
                f", there is {alike[0]!r}" if alike else "",
            )
        return [device.get(label, "N/A") for device in devices]

    def __len__(self) -> int:
        return len(self._devices)

    def __getitem__(self, device: int) -> dict[str, str]:
        return self.getDevices()[device]

    def __iter__(self) -> Iterator[dict[str, str]]:
        return iter(self.getDevices())
