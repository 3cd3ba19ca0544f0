"""Where tensors live while no action needs them, and which replica: from strategy and TensorLocations to the native
options.

Source: spec options.md, sections 5 (phased strategies put all tensors off chip), 6 and 9.4.
"""

import os

from . import enums, strategies

# In the order of the native ProgramOptions.setLocations.
_USES = ("weight", "optimizer", "accumulator", "activation")
_MIN_ELEMENTS = 2  # scalars stay on the device unless minElementsForOffChip says otherwise
_MIN_ELEMENTS_OF_SHARDS = 8192  # PopART's default for minElementsForReplicatedTensorSharding


def _isOffChipByDefault(strategy, use):
    """Phased strategies put everything off chip; activations where their liveness lets them leave."""
    if not isinstance(strategy, strategies._PhasedStrategy):
        return False
    return use != "activation" or strategy._tensors_liveness != enums.Liveness.AlwaysLive


def _settings(options, use):
    key = f"location_{use}"
    return options.TensorLocations(key) if options.TensorLocations.exists(key) else {}


def _sharding(options, use):
    """Is it dealt to the replicas, and from how many elements on."""
    settings = _settings(options, use)
    return (
        bool(settings.get("useReplicatedTensorSharding", False)),
        settings.get("minElementsForReplicatedTensorSharding", _MIN_ELEMENTS_OF_SHARDS),
    )


def setLocations(result, options):
    """Fills the locations of native ProgramOptions."""
    strategy = options._execution_strategy
    locations = []
    for use in _USES:
        settings = _settings(options, use)
        on_chip = settings.get("onChip", not _isOffChipByDefault(strategy, use))
        locations.append((not on_chip, settings.get("minElementsForOffChip", _MIN_ELEMENTS)))
    liveness = getattr(strategy, "_tensors_liveness", None)
    result.setSharding(_sharding(options, "weight"), _sharding(options, "optimizer"))
    result.setLocations(locations, liveness != enums.Liveness.OffChipAfterFwdNoOverlap)
    if options.exists("off_chip_memory_limit"):
        result.off_chip_memory_limit = options.off_chip_memory_limit
    if options.exists("off_chip_folder"):
        result.off_chip_folder = os.fspath(options.off_chip_folder)
