"""Enumerations that programs written for PopTorch pass to `opts._Popart.set`; nothing else of PopART.

Members named `None` are read with getattr(popart.VirtualGraphMode, "None") where the language needs it.
Source: spec tools.md, popart enums.
"""

from .enums import *  # noqa: F403
from .enums import __all__ as _enums


def versionString():
    """The version of PopART that this stands for."""
    return "3.4.0+abele"


class TensorLocation:
    """Where a tensor lives; a request, as of poptorch.TensorLocationSettings."""

    def __init__(self, storage=None, loadTileSet=None, storageTileSet=None, replicatedTensorSharding=None):
        from . import enums

        self.storage = enums.TensorStorage.OnChip if storage is None else storage
        self.loadTileSet = enums.TileSet.Compute if loadTileSet is None else loadTileSet
        self.storageTileSet = enums.TileSet.Compute if storageTileSet is None else storageTileSet
        self.replicatedTensorSharding = (
            enums.ReplicatedTensorSharding.Off if replicatedTensorSharding is None else replicatedTensorSharding
        )

    def __eq__(self, other):
        return isinstance(other, TensorLocation) and vars(self) == vars(other)

    __hash__ = None

    def __repr__(self):
        return f"TensorLocation({', '.join(f'{name}={value!s}' for name, value in vars(self).items())})"


__all__ = ["TensorLocation", "versionString", *_enums]
