"""Option classes: what the user sets before a model is wrapped.

The table of options is src/options/options.json; setters that only store a value are generated from it
(_options_generated.py), the others are here. Source: spec options.md, sections 1 to 8.
"""

import copy
import os

import torch

from . import enums, strategies
from ._errors import ConfigFileError, refused, userError
from ._logging import logger
from ._option_ranges import expectedOf, isInRange, requireInRange
from ._options_dict import OptionsDict
from ._options_generated import DEFAULTS, POPART_DEFAULTS, OptionsSetters, PrecisionSetters, TrainingSetters
from ._options_text import applyFile, applyJson
from ._options_validation import validatePopart
from ._progress import ProgressBar
from .enums import *  # noqa: F403  (as in PopTorch)
from .strategies import *  # noqa: F403  (poptorch.options holds all option classes)


def _defaults(group):
    return copy.deepcopy(DEFAULTS[group])


class TensorLocationSettings(OptionsDict):
    """A placement request for one class of tensors. Starts empty. They never change results."""

    def _store(self, name, value, kind):
        if not isinstance(value, kind):
            raise refused(AssertionError, f"{name} takes {kind.__name__}, got {value!r}")
        if kind is int:
            requireInRange(f"TensorLocationSettings.{name}", min_elements=value)
        self.createOrSet(**{name: int(value)})
        return self

    def minElementsForOffChip(self, min_elements):
        """Smallest tensor, in elements, that leaves the device. Returns self."""
        return self._store("minElementsForOffChip", min_elements, int)

    def minElementsForReplicatedTensorSharding(self, min_elements):
        """Smallest tensor, in elements, that is sharded; default 8192. Returns self."""
        return self._store("minElementsForReplicatedTensorSharding", min_elements, int)

    def useOnChipStorage(self, use=True):
        """Keep the tensors on the device; None removes the setting. Returns self."""
        if use is None:
            self.deleteIfExists("onChip")
            return self
        return self._store("onChip", use, bool)

    def useReplicatedTensorSharding(self, use=True):
        """Deal the tensors to the replicas: each is in one replica's memory, which runs its updates. Returns self.

        For weights and optimizer state; activations and gradient sums are every replica's own.
        """
        return self._store("useReplicatedTensorSharding", use, bool)

    def useIOTilesToLoad(self, use=True):
        """Load through tiles reserved for input and output. Returns self."""
        return self._store("useIOTilesToLoad", use, bool)

    def useIOTilesToStore(self, use=True):
        """Store through tiles reserved for input and output. Returns self."""
        return self._store("useIOTilesToStore", use, bool)


class _TensorLocationOptions(OptionsDict):
    """`opts.TensorLocations`. Starts empty."""

    def numIOTiles(self, num_tiles):
        """Tiles reserved for input and output: even, 32..192. Returns self."""
        setter = "TensorLocations.numIOTiles"
        if not (isinstance(num_tiles, int) and isInRange(setter, "num_tiles", num_tiles)):
            raise refused(
                AssertionError, f"numIOTiles takes an int, {expectedOf(setter, 'num_tiles')}, got {num_tiles!r}"
            )
        self.createOrSet(num_io_tiles=num_tiles)
        return self

    def _setLocation(self, tensors, location):
        if not isinstance(location, TensorLocationSettings):
            raise refused(AssertionError, f"expected TensorLocationSettings, got {location!r}")
        self.createOrSet(**{f"location_{tensors}": location.toDict()})
        return self

    def setActivationLocation(self, location):
        """Placement of activations. Returns self."""
        return self._setLocation("activation", location)

    def setWeightLocation(self, location):
        """Placement of weights. Returns self."""
        return self._setLocation("weight", location)

    def setOptimizerLocation(self, location):
        """Placement of optimizer state. Returns self."""
        return self._setLocation("optimizer", location)

    def setAccumulatorLocation(self, location):
        """Placement of gradient accumulators. Returns self."""
        return self._setLocation("accumulator", location)


class _DistributedOptions(OptionsDict):
    """`opts.Distributed`: several processes. Starts from OpenMPI's environment variables."""

    def __init__(self):
        super().__init__(num_distributed_processes=1, distributed_process_id=0, ipuof_configs={})
        self.setEnvVarNames("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")

    def disable(self):
        """One process, index 0."""
        self.configureProcessId(0, 1)

    def setEnvVarNames(self, var_num_processes, var_process_id):
        """Reads the number of processes and the index from these environment variables. Returns self."""
        return self.configureProcessId(
            _intFromEnvironment(var_process_id, 0), _intFromEnvironment(var_num_processes, 1)
        )

    def configureProcessId(self, process_id, num_processes):
        """Sets the index and the number of processes. Returns self."""
        requireInRange("Distributed.configureProcessId", process_id=process_id, num_processes=num_processes)
        return self.set(distributed_process_id=process_id, num_distributed_processes=num_processes)

    @property
    def processId(self):
        """Index of this process."""
        return self.distributed_process_id

    @property
    def numProcesses(self):
        """Number of processes."""
        return self.num_distributed_processes


def _intFromEnvironment(name, default):
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise userError(
            "E0702",
            "option-value",
            f"environment variable {name} is {text!r}",
            expected="an integer",
            remedy=f"set {name} to an integer or unset it",
        ) from None


class _JitOptions(OptionsDict):
    """`opts.Jit`: deprecated."""

    def traceModel(self, trace_model):
        """Deprecated: models are always captured. True is an error. Returns self."""
        logger.warning("Jit.traceModel is deprecated and has no effect")
        if trace_model:
            raise refused(ValueError, "Jit.traceModel(True): the tracer of earlier versions does not exist any more")
        return self


class _PrecisionOptions(PrecisionSetters, OptionsDict):
    """`opts.Precision`."""

    def __init__(self, popart):
        super().__init__()
        self._Popart = popart

    def setPartialsType(self, dtype):
        """Accumulation type inside matrix products and convolutions: torch.float or torch.half. Returns self."""
        names = {torch.float32: "float", torch.float16: "half"}
        if dtype not in names:
            raise refused(ValueError, f"setPartialsType takes torch.float or torch.half, got {dtype!r}")
        self._Popart.set("partialsTypeMatMuls", names[dtype])
        self._Popart.set("convolutionOptions", {"partialsType": names[dtype]})
        return self

    def halfFloatCasting(self, half_float_casting):
        """Deprecated and ignored: mixed operands follow torch's promotion rules. Returns self."""
        logger.warning("Precision.halfFloatCasting is deprecated and has no effect")
        return self

    def runningStatisticsAlwaysFloat(self, value):
        """Deprecated and ignored: running statistics keep their own dtype. Returns self."""
        if not isinstance(value, bool):
            raise refused(ValueError, f"runningStatisticsAlwaysFloat takes a bool, got {value!r}")
        logger.warning("Precision.runningStatisticsAlwaysFloat is deprecated and has no effect")
        return self

    def _reprParts(self):
        return [part for part in super()._reprParts() if not part.startswith("_Popart=")]


class _TrainingOptions(TrainingSetters, OptionsDict):
    """`opts.Training`."""

    def __init__(self, popart):
        super().__init__(**_defaults("Training"))
        self._Popart = popart

    def accumulationAndReplicationReductionType(self, reduction_type):
        """Gradients are the Mean (default) or the Sum over accumulation steps and replicas. Returns self."""
        if reduction_type not in (enums.ReductionType.Mean, enums.ReductionType.Sum):
            raise refused(ValueError, f"the reduction type must be Mean or Sum, got {reduction_type!r}")
        return self.set(accumulation_and_replication_reduction_type=reduction_type)

    def setConvolutionDithering(self, enabled):
        """Convolution layout; a hint. Replaces the whole "convolutionOptions" setting. Returns self."""
        self._Popart.set("convolutionOptions", {"enableConvDithering": enabled})
        return self

    def _reprParts(self):
        return [part for part in super()._reprParts() if not part.startswith("_Popart=")]


class _PopartOptions:
    """`opts._Popart`: expert settings, stored as they come and checked when a model is compiled."""

    def __init__(self):
        self.options = dict(POPART_DEFAULTS)
        self._is_frozen = False

    def checkIsFrozen(self, option=None):
        """Raises AttributeError if the options are frozen."""
        if self._is_frozen:
            raise refused(
                AttributeError,
                f"E0707 frozen: can't modify frozen _Popart options (option {option})\n"
                "  try       set options before the model or the DataLoader is created",
            )

    def _freeze(self):
        self._is_frozen = True

    def _unfreeze(self):
        self._is_frozen = False

    def set(self, key, value):
        """Stores one setting. Returns self."""
        self.checkIsFrozen(key)
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options):
        """Stores the engine options. Returns self."""
        return self.set("engineOptions", engine_options)

    def setPatterns(self, patterns, level=2):
        """Switches optimisation patterns of the original compiler; a hint. Returns self."""
        if not (isinstance(level, int) and not isinstance(level, bool)):
            raise refused(AssertionError, f"level must be an int, got {level!r}")
        requireInRange("_Popart.setPatterns", level=level)
        if not isinstance(patterns, dict):
            raise refused(AssertionError, f"patterns must be a dict of str to bool, got {patterns!r}")
        for name, enabled in patterns.items():
            if not (isinstance(name, str) and isinstance(enabled, bool)):
                raise refused(AssertionError, f"pattern {name!r}: {enabled!r} is not str: bool")
        self.set("patterns_level", level)
        return self.set("patterns", patterns)

    def validate(self):
        """Raises poptorch.Error for an unknown name or a value of the wrong type."""
        validatePopart(self.options)

    def __eq__(self, other):
        return isinstance(other, _PopartOptions) and self.options == other.options

    __hash__ = None

    def __deepcopy__(self, memory):
        result = _PopartOptions()
        memory[id(self)] = result
        result.options = copy.deepcopy(self.options, memory)
        return result

    def __repr__(self):
        return f"_PopartOptions({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"


_GROUPS = {
    "TensorLocations": _TensorLocationOptions,
    "Distributed": _DistributedOptions,
    "Jit": _JitOptions,
    "Precision": _PrecisionOptions,
    "Training": _TrainingOptions,
}


class Options(OptionsSetters, OptionsDict):
    """All compile and run settings of a model. Methods return self, so that calls chain.

    Initial values: built-in defaults, then POPTORCH_CACHE_DIR, then POPTORCH_DEFAULT_OPTIONS (JSON). The object is
    frozen by the model or the DataLoader that takes it; clone() gives an unfrozen copy.
    """

    def __init__(self):
        super().__init__(**_defaults("Options"))
        self._execution_strategy = strategies.PipelinedExecution()
        self._popart = _PopartOptions()
        self._training = _TrainingOptions(self._popart)
        self._precision = _PrecisionOptions(self._popart)
        self._jit = _JitOptions()
        self._distributed = _DistributedOptions()
        self._tensor_locations = _TensorLocationOptions()
        cache = os.environ.get("POPTORCH_CACHE_DIR", "")
        if cache:
            logger.info("POPTORCH_CACHE_DIR is set: executables are cached in %s", cache)
            self.enableExecutableCaching(cache)
        defaults = os.environ.get("POPTORCH_DEFAULT_OPTIONS", "")
        if defaults:
            logger.info("POPTORCH_DEFAULT_OPTIONS is set: %s", defaults)
            self.from_json(defaults)

    @classmethod
    def _setters(cls):
        own = super()._setters()
        return own + [
            f"{group}.{name}" for group, kind in _GROUPS.items() for name in kind._setters() if name not in own
        ]

    # Groups ----------------------------------------------------------------------------------------------------------
    @property
    def TensorLocations(self):
        """Placement of tensor classes."""
        return self._tensor_locations

    @property
    def Distributed(self):
        """Several processes."""
        return self._distributed

    @property
    def Jit(self):
        """Deprecated settings of the tracer."""
        return self._jit

    @property
    def Precision(self):
        """Half precision."""
        return self._precision

    @property
    def Training(self):
        """Training process."""
        return self._training

    @property
    def _Popart(self):
        """Expert settings."""
        return self._popart

    # Setters with rules ----------------------------------------------------------------------------------------------
    def inputReplicaGrouping(self, input_group_size, input_group_type):
        """Replicas of one group receive the same slice of the inputs. Call replicationFactor first. Returns self.

        Raises:
            ValueError: the type is All, or the size does not divide the replication factor.
        """
        self.checkIsFrozen("input_group_size")
        if input_group_type == enums.CommGroupType.All:
            raise refused(
                ValueError, "inputReplicaGrouping does not take CommGroupType.All: use a group of all replicas"
            )
        if input_group_type == enums.CommGroupType.NoGrouping:
            input_group_size, input_group_type = 1, enums.CommGroupType.Consecutive
        replicas = self.replication_factor
        if input_group_size < 1 or input_group_size > replicas or replicas % input_group_size:
            raise refused(
                ValueError,
                f"input group size {input_group_size} does not divide the replication factor {replicas}; "
                "call replicationFactor first",
            )
        return self.set(input_group_size=input_group_size, input_cgt=enums.CommGroupType(input_group_type))

    def setExecutionStrategy(self, strategy):
        """How blocks become stages or phases. Returns self."""
        if not isinstance(strategy, strategies._Strategy):
            raise refused(AssertionError, f"expected an execution strategy, got {strategy!r}")
        self._execution_strategy = strategy
        return self

    def setAvailableMemoryProportion(self, available_memory_proportion):
        """Share of each device's memory that temporaries may use, {"IPU0": 0.3}; a hint."""
        proportions = {}
        for device, share in available_memory_proportion.items():
            if not (isinstance(device, str) and device.startswith("IPU") and device[3:].isdigit()):
                raise refused(AssertionError, f'keys must be "IPU<n>", got {device!r}')
            if not (isinstance(share, (int, float)) and 0 <= share <= 1):
                raise refused(AssertionError, f"{device}: {share!r} is not in 0..1")
            proportions[int(device[3:])] = share
        self.set(available_memory_proportion=proportions)

    def outputMode(self, output_mode, output_return_period=None):
        """Which micro-batch results a call returns. EveryN needs output_return_period > 0. Returns self."""
        if not isinstance(output_mode, enums.OutputMode):
            raise refused(AssertionError, f"outputMode takes an OutputMode, got {output_mode!r}")
        if output_mode == enums.OutputMode.EveryN:
            fits = isInRange("outputMode", "output_return_period", output_return_period)
            if not (output_return_period is not None and fits):
                raise refused(AssertionError, "OutputMode.EveryN needs output_return_period > 0")
        elif output_return_period is not None:
            logger.info("output_return_period has no effect with %s", output_mode)
        self.set(output_mode=int(output_mode))
        if output_return_period is not None:
            self.set(output_return_period=output_return_period)
        return self

    def defaultOutputMode(self):
        """True if no output mode was chosen."""
        return self.output_mode == enums.OutputMode.Default

    def anchorTensor(self, short_name, long_name, output_mode=None, output_return_period=1):
        """Observe an inner tensor: its value is executor.getAnchoredTensor(short_name)."""
        if output_mode is None:
            value = [long_name, True, enums.OutputMode.Default, 1]
        else:
            if not isinstance(output_mode, enums.OutputMode):
                raise refused(AssertionError, f"expected an OutputMode, got {output_mode!r}")
            period = output_return_period if output_mode == enums.OutputMode.EveryN else 1
            if not (period > 0):
                raise refused(AssertionError, "OutputMode.EveryN needs output_return_period > 0")
            value = [long_name, False, output_mode, period]
        self._values["anchored_tensors"][short_name] = value

    def useOfflineIpuTarget(self, ipu_version=2):
        """Compile without a device; running is then an error. Returns self."""
        setter = "useOfflineIpuTarget"
        if not (isinstance(ipu_version, int) and isInRange(setter, "ipu_version", ipu_version)):
            raise refused(
                AssertionError, f"ipu_version must be {expectedOf(setter, 'ipu_version')}, got {ipu_version!r}"
            )
        self.connectionType(enums.ConnectionType.Never)
        self.createOrSet(ipu_version=ipu_version)
        return self

    def deviceMemoryLimit(self, limit_bytes):
        """Bytes that a device has. A program that needs more is E0405 when it is compiled. Ours, not PopTorch's.

        Counted is what the plan places on a device (docs/memory.md): weights, optimizer state, gradient sums,
        constants, activations and values inside a task. PipelinedExecution.recompute("fit") recomputes to stay below.

        Args:
            limit_bytes: an int >= 0 for every device, or a dict as in setAvailableMemoryProportion, {"IPU0": bytes};
                devices that are not in it have no limit.
        Returns: self.
        Raises:
            poptorch.Error: E0702 for a negative limit.
        """
        limits = limit_bytes if isinstance(limit_bytes, dict) else {"IPU0": limit_bytes}
        checked = {}
        for device, limit in limits.items():
            if not (isinstance(device, str) and device.startswith("IPU") and device[3:].isdigit()):
                raise refused(AssertionError, f'keys must be "IPU<n>", got {device!r}')
            if not (isinstance(limit, int) and not isinstance(limit, bool)):
                raise refused(AssertionError, f"deviceMemoryLimit takes numbers of bytes, got {limit!r}")
            requireInRange("deviceMemoryLimit", limit_bytes=limit)
            checked[int(device[3:])] = limit
        self.checkIsFrozen("device_memory_limit")
        self.deleteIfExists("device_memory_limit")  # an option keeps its type, and this one has two
        return self.createOrSet(device_memory_limit=checked if isinstance(limit_bytes, dict) else limit_bytes)

    def offChipMemoryLimit(self, limit_bytes):
        """Host memory for tensors off chip, in bytes; a file takes what goes beyond it. Ours, not PopTorch's.

        Without a limit all of them are in host memory. See offChipFolder and docs/phases.md.

        Args:
            limit_bytes: an int >= 0.
        Returns: self.
        Raises:
            poptorch.Error: E0702 for a negative limit.
        """
        if not isinstance(limit_bytes, int):
            raise refused(AssertionError, f"offChipMemoryLimit takes a number of bytes, got {limit_bytes!r}")
        requireInRange("offChipMemoryLimit", limit_bytes=limit_bytes)
        return self.createOrSet(off_chip_memory_limit=limit_bytes)

    def offChipFolder(self, path):
        """Folder of the file for tensors off chip; default: the system's temporary folder. Ours, not PopTorch's.

        The file has no name and is gone with the process, however that ends. A folder of a file system in memory
        (tmpfs) saves no memory. A folder that cannot be written is E0605 when the model is compiled.

        Returns: self.
        """
        return self.createOrSet(off_chip_folder=os.fspath(path))

    def randomSeed(self, random_seed):
        """Seed of the device's random numbers; also calls torch.manual_seed. Returns self."""
        if not isinstance(random_seed, int):
            raise refused(AssertionError, f"randomSeed takes an int, got {random_seed!r}")
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def maxRepeatLogs(self, max_lines):
        """Repeated log lines stop after so many; None means never. Returns self."""
        requireInRange("maxRepeatLogs", max_lines=max_lines)
        return self.set(max_repeat_logs=2**64 - 1 if max_lines is None else max_lines)

    def enableExecutableCaching(self, path):
        """Keep compiled executables in this folder; None disables. Returns self."""
        if path is None:
            self.checkIsFrozen("cachePath")
            self._popart.options.pop("cachePath", None)
            self._popart.set("enableEngineCaching", False)
            return self
        self._popart.set("cachePath", path)
        self._popart.set("enableEngineCaching", True)
        return self

    def enableSyntheticData(self, enabled):
        """No host input and output; the device makes up data. Returns self."""
        self._popart.set("syntheticDataMode", 2 if enabled else 0)
        return self

    def enableProfiling(self, profile_dir=None):
        """Write a profile of each run into this folder (default: the working directory). Returns self."""
        settings = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": profile_dir or ".",
            "autoReport.all": "true",
        }
        environment = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
        for name in settings:
            if name in environment:
                logger.warning("POPLAR_ENGINE_OPTIONS sets %s: it wins over enableProfiling", name)
        self._popart.set("engineOptions", {**self._popart.options.get("engineOptions", {}), **settings})
        return self

    def disableModuleNamescope(self):
        """Do not prefix operation names with the module path. Returns self."""
        return self.set(module_namescope_enabled=False)

    def sourceLocationExcludes(self, excludes):
        """Frames whose file name contains one of these are not user code. Replaces the list. Returns self."""
        return self.set(source_location_excludes=list(excludes))

    def appendToLocationExcludes(self, *excludes):
        """Extends the list of sourceLocationExcludes. Returns self."""
        return self.set(source_location_excludes=[*self.source_location_excludes, *excludes])

    # Files and copies ------------------------------------------------------------------------------------------------
    def loadFromFile(self, filepath):
        """Applies a file of setter calls, one a line, without the "options." in front. Returns self."""
        applyFile(self, filepath)
        return self

    def from_json(self, string):
        """Applies a JSON object {"dotted.setter": arguments}. Returns self."""
        applyJson(self, string)
        return self

    def clone(self):
        """An unfrozen deep copy."""
        return copy.deepcopy(self)

    def toDict(self):
        """All values in one flat dict. Requires that an output mode was chosen."""
        if self.defaultOutputMode():
            raise refused(AssertionError, "choose an output mode first: opts.outputMode(...)")
        result = dict(self._execution_strategy.backendOptions())
        for values in (
            self._popart.options,
            _plainValues(self),
            self._training._values,
            self._distributed._values,
            self._tensor_locations._values,
        ):
            common = values.keys() & result.keys()
            if common:
                raise refused(AssertionError, f"options set in two groups: {', '.join(sorted(common))}")
            result.update(copy.deepcopy(values))
        if self.show_compilation_progress_bar:
            result["compilation_progress_bar_fn"] = ProgressBar()
        return result

    def __repr__(self):
        parts = [f"{name}={value!r}" for name, value in self._values.items()]
        parts.append(f"_execution_strategy={self._execution_strategy!r}")
        properties = sorted(
            name for cls in type(self).__mro__ for name, value in vars(cls).items() if isinstance(value, property)
        )
        parts += [f"{name}={getattr(self, name)!r}" for name in properties]
        return f"{type(self).__name__}({', '.join(parts)})"


def _plainValues(options):
    """The general values in the form that clients compare with."""
    values = dict(options._values)
    values["available_memory_proportion"] = {
        f"IPU{n}": share for n, share in options.available_memory_proportion.items()
    }
    return values


__all__ = ["ConfigFileError", "Options", "TensorLocationSettings", *strategies.__all__]
