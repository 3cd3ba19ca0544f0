"""Option classes, for editors and type checkers. Setters: _option_setters.pyi."""

import os
from typing import Any, Self

from . import _option_setters as table
from ._errors import ConfigFileError as ConfigFileError
from ._options_dict import OptionsDict
from .enums import *
from .strategies import *

class TensorLocationSettings(table.TensorLocationSettingsSetters, OptionsDict):
    """A request for the placement of one class of tensors. Starts empty. Never changes results."""

class _TensorLocationOptions(table.TensorLocationsSetters, OptionsDict):
    """`opts.TensorLocations`. Starts empty."""

class _DistributedOptions(table.DistributedSetters, OptionsDict):
    """`opts.Distributed`: several processes. Starts from OpenMPI's environment variables."""

    @property
    def processId(self) -> int: ...
    @property
    def numProcesses(self) -> int: ...

class _JitOptions(table.JitSetters, OptionsDict):
    """`opts.Jit`: deprecated."""

class _PrecisionOptions(table.PrecisionSetters, OptionsDict):
    """`opts.Precision`."""

class _TrainingOptions(table.TrainingSetters, OptionsDict):
    """`opts.Training`."""

class _PopartOptions(table.PopartSetters):
    """`opts._Popart`: expert settings. They are stored unchecked, and compiling checks them."""

    @property
    def options(self) -> dict[str, Any]: ...
    def checkIsFrozen(self, option: str | None = None) -> None: ...
    def validate(self) -> None: ...

class Options(table.OptionsSetters, OptionsDict):
    """All compile and run settings of a model. Methods return self, so that calls chain.

    Initial values: built-in defaults, then POPTORCH_CACHE_DIR, then POPTORCH_DEFAULT_OPTIONS (JSON). The object is
    frozen by the model or the DataLoader that takes it; clone() gives an unfrozen copy.
    """

    def __init__(self) -> None: ...
    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Placement of tensor classes."""
    @property
    def Distributed(self) -> _DistributedOptions:
        """Several processes."""
    @property
    def Jit(self) -> _JitOptions:
        """Deprecated settings of the tracer."""
    @property
    def Precision(self) -> _PrecisionOptions:
        """Half precision."""
    @property
    def Training(self) -> _TrainingOptions:
        """Training process."""
    @property
    def _Popart(self) -> _PopartOptions:
        """Expert settings."""

    def defaultOutputMode(self) -> bool:
        """True if no output mode was chosen."""
    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Self:
        """Applies a file of setter calls, one per line, without the prefix "options.". Returns self."""
    def from_json(self, string: str) -> Self:
        """Applies a JSON object {"dotted.setter": arguments}. Returns self."""
    def clone(self) -> Self:
        """An unfrozen deep copy."""
