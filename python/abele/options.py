"""Option classes: settings that the user makes before a model is wrapped.

C++ has the values, their rules and most setters: src/options, with the table options.json. This file has Python's own
part: objects that C++ does not hold, and expert settings, which may be anything until a model is compiled.
Source: spec options.md, sections 1 to 8.
"""

import copy
import operator
import os
from typing import Any, Self

import torch

from . import _option_setters as table
from . import enums, strategies
from ._errors import ConfigFileError, refused
from ._logging import logger
from ._native import core
from ._options_dict import OptionsDict, add_values
from ._options_text import CLASSES, apply_file, apply_json
from ._progress import ProgressBar
from .enums import *  # noqa: F403  (as in PopTorch)
from .enums import OutputMode
from .strategies import *  # noqa: F403  (poptorch.options holds all option classes)


class TensorLocationSettings(table.TensorLocationSettingsSetters, OptionsDict):
    """A request for the placement of one class of tensors. Starts empty. Never changes results."""

    _group = "TensorLocationSettings"


class _TensorLocationOptions(table.TensorLocationsSetters, OptionsDict):
    """`opts.TensorLocations`. Starts empty."""

    _group = "TensorLocations"


class _DistributedOptions(table.DistributedSetters, OptionsDict):
    """`opts.Distributed`: several processes. Starts from OpenMPI's environment variables."""

    _group = "Distributed"

    @property
    def processId(self) -> int:
        """Index of this process."""
        return self.distributed_process_id

    @property
    def numProcesses(self) -> int:
        """Number of processes."""
        return self.num_distributed_processes


class _JitOptions(table.JitSetters, OptionsDict):
    """`opts.Jit`: deprecated."""

    _group = "Jit"


class _PrecisionOptions(table.PrecisionSetters, OptionsDict):
    """`opts.Precision`."""

    _group = "Precision"

    def halfFloatCasting(self, half_float_casting: enums.HalfFloatCastingBehavior) -> Self:
        """Deprecated and ignored: mixed operands follow torch's promotion rules. Returns self."""
        return super().halfFloatCasting(enums.HalfFloatCastingBehavior.Default)


class _TrainingOptions(table.TrainingSetters, OptionsDict):
    """`opts.Training`."""

    _group = "Training"


class _PopartOptions(table.PopartSetters):
    """`opts._Popart`: expert settings. They are stored unchecked, and compiling checks them."""

    def __init__(self, values):
        self._native = values

    @property
    def options(self) -> dict[str, Any]:
        """The settings by name: a dict that may be changed."""
        return self._native.experts

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raises AttributeError if the options are frozen."""
        OptionsDict.checkIsFrozen(self, option)

    def set(self, key: str, value: Any) -> Self:
        """Stores one setting. Returns self. "abele.deviceType" and its kin are deprecated: use options.deviceType()."""
        self.checkIsFrozen(key)
        if str(key).startswith("abele."):
            self._native.call("_Popart.set", key, value)
        else:
            self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: dict[str, Any]) -> Self:
        """Stores the engine options. Returns self."""
        return self.set("engineOptions", engine_options)

    def validate(self) -> None:
        """Raises poptorch.Error for an unknown name or a value of the wrong type."""
        core().validateExpert(self.options)

    def __eq__(self, other):
        return isinstance(other, _PopartOptions) and self.options == other.options

    __hash__ = None

    def __repr__(self):
        return f"_PopartOptions({', '.join(f'{key}={value!r}' for key, value in sorted(self.options.items()))})"


# Attribute of Options -> (private attribute, class, docstring).
_GROUPS = {
    "TensorLocations": ("_tensor_locations", _TensorLocationOptions, "Placement of tensor classes."),
    "Distributed": ("_distributed", _DistributedOptions, "Several processes."),
    "Jit": ("_jit", _JitOptions, "Deprecated settings of the tracer."),
    "Precision": ("_precision", _PrecisionOptions, "Half precision."),
    "Training": ("_training", _TrainingOptions, "Training process."),
    "_Popart": ("_popart", _PopartOptions, "Expert settings."),
}


class Options(table.OptionsSetters, OptionsDict):
    """All compile and run settings of a model. Methods return self, so that calls chain.

    Initial values: built-in defaults, then POPTORCH_CACHE_DIR, then POPTORCH_DEFAULT_OPTIONS (JSON). The object is
    frozen by the model or the DataLoader that takes it; clone() gives an unfrozen copy.
    """

    TensorLocations: _TensorLocationOptions
    Distributed: _DistributedOptions
    Jit: _JitOptions
    Precision: _PrecisionOptions
    Training: _TrainingOptions
    _Popart: _PopartOptions

    def __init__(self) -> None:
        super().__init__()
        self._native.strategy = strategies.PipelinedExecution()
        self._add_groups()
        cache = os.environ.get("POPTORCH_CACHE_DIR", "")
        if cache:
            logger.info("POPTORCH_CACHE_DIR is set: executables are cached in %s", cache)
            self.enableExecutableCaching(cache)
        defaults = os.environ.get("POPTORCH_DEFAULT_OPTIONS", "")
        if defaults:
            logger.info("POPTORCH_DEFAULT_OPTIONS is set: %s", defaults)
            self.from_json(defaults)

    @classmethod
    def _of(cls, values):
        """Options with these native values, without those of the environment."""
        result = cls.__new__(cls)
        OptionsDict.__init__(result, values)
        result._add_groups()
        result.__dict__["_built"] = True
        return result

    def _add_groups(self):
        for attribute, kind, _ in _GROUPS.values():
            setattr(self, attribute, kind(self._native))

    @classmethod
    def _setters(cls):
        own = super()._setters()
        return own + [
            f"{group}.{name}"
            for group, (_, kind, _) in _GROUPS.items()
            if group != "_Popart"
            for name in kind._setters()
            if name not in own
        ]

    # Setters with a part that is Python's ----------------------------------------------------------------------------
    def setExecutionStrategy(self, strategy: strategies._Strategy) -> Self:
        """How blocks become stages or phases. Returns self."""
        if not isinstance(strategy, strategies._Strategy):
            raise refused(AssertionError, f"expected an execution strategy, got {strategy!r}")
        self.checkIsFrozen("setExecutionStrategy")
        self._native.strategy = strategy
        return self

    @property
    def _execution_strategy(self):
        return self._native.strategy

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int = 1,
    ) -> None:
        """Record an inner tensor: executor.getAnchoredTensor(short_name) returns its value. Works on frozen options."""
        frozen, self._native.frozen = self._native.frozen, False
        try:
            super().anchorTensor(short_name, long_name, output_mode, output_return_period)
        finally:
            self._native.frozen = frozen

    def randomSeed(self, random_seed: int) -> Self:
        """Seed of the device's random numbers; also calls torch.manual_seed. Returns self."""
        super().randomSeed(random_seed)
        torch.manual_seed(random_seed)
        return self

    def defaultOutputMode(self) -> bool:
        """True if no output mode was chosen."""
        return self.output_mode == OutputMode.Default

    # Files and copies ------------------------------------------------------------------------------------------------
    def loadFromFile(self, filepath: str | os.PathLike[str]) -> Self:
        """Applies a file of setter calls, one per line, without the prefix "options.". Returns self."""
        apply_file(self, filepath)
        return self

    def from_json(self, string: str) -> Self:
        """Applies a JSON object {"dotted.setter": arguments}. Returns self."""
        apply_json(self, string)
        return self

    def clone(self) -> Self:
        """An unfrozen deep copy."""
        return copy.deepcopy(self)

    def _keep_compiled(self, compiled):
        """Resets all that is part of a program to its value in the compiled options. A warning names what changed."""
        ignored = self._native.keepCompiled(compiled._native)
        if ignored:
            logger.warning("load(): ignored, since the program is compiled already: %s", ", ".join(ignored))

    def toDict(self) -> dict[str, Any]:
        """All values in one flat dict. Requires: an output mode was chosen."""
        if self.defaultOutputMode():
            raise refused(AssertionError, "choose an output mode first: opts.outputMode(...)")
        own = self._as_dict()
        shares = own["available_memory_proportion"]
        own["available_memory_proportion"] = {f"IPU{device}": share for device, share in shares.items()}
        result = dict(self._execution_strategy.backendOptions())
        add_values(result, copy.deepcopy(self._popart.options))
        add_values(result, own)
        for group in (self._training, self._distributed, self._tensor_locations):
            group.update(result)
        if self.show_compilation_progress_bar:
            result["compilation_progress_bar_fn"] = ProgressBar()
        return result

    def __repr__(self):
        parts = [f"{name}={value!r}" for name, value in self._as_dict().items()]
        properties = sorted(
            name
            for cls in type(self).__mro__
            for name, value in vars(cls).items()
            if isinstance(value, property) and name != "_values"
        )
        parts += [f"{name}={getattr(self, name)!r}" for name in properties]
        return f"{type(self).__name__}({', '.join(parts)})"


for _name, (_attribute, _, _text) in _GROUPS.items():
    setattr(Options, _name, property(operator.attrgetter(_attribute), doc=_text))


__all__ = ["ConfigFileError", "Options", "TensorLocationSettings", *strategies.__all__]


CLASSES.update({each.__name__: each for each in (Options, TensorLocationSettings)})
