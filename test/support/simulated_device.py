"""Importing it brings torch the simulated accelerator: `scripts/check_device.sh --import simulated_device`."""

import simulated

simulated.load()
