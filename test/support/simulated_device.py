"""Importing it brings torch the simulated accelerator: `scripts/check_device.sh --import support.simulated_device`."""

from support import simulated

simulated.load()
