"""Abele: model-parallel compiler and runtime for PyTorch.

Pipelines of any length, any number of devices, and one compiled program per shape of the inputs. The package `poptorch`
is the same product under PopTorch's names and with its limits. Names are loaded at their first use.
"""

import importlib

from ._version import __version__ as __version__

# Module of this package -> the public names that it defines.
_HOMES = {
    "_async_accessor": ("AsynchronousDataAccessor",),
    "_devices": ("ipuHardwareIsAvailable", "ipuHardwareVersion"),
    "_eager": ("runEagerly",),
    "_errors": ("Error", "RecoverableError", "UnrecoverableError"),
    "_hooks": ("registerPostCompileHook", "registerPreCompileHook"),
    "_logging": ("setLogLevel",),
    "_models": ("CompiledModel", "explain", "inferenceModel", "load", "trainingModel"),
    "_native": ("isCapturing",),
    "_offload": ("offload",),
    "_simulate": ("Simulation", "simulate"),
    "_stopping": ("Stop", "stop_on_signal"),
    "_verify": ("Difference", "Verification", "verify"),
    "_weights": ("init_weights", "load_weights", "optimizer_state", "save_weights", "weights"),
    "annotations": (
        "BeginBlock",
        "Block",
        "BlockFunction",
        "NameScope",
        "module_repr",
        "removeBlocks",
    ),
    "checkpoint": ("load_checkpoint", "load_tensors", "save_checkpoint", "save_tensors"),
    "control_flow": ("CPU", "cond", "for_loop"),
    "custom_ops": ("custom_op",),
    "data": ("DataLoader",),
    "enums": (
        "AutoStage",
        "CommGroupType",
        "ConnectionType",
        "DataLoaderMode",
        "Liveness",
        "MatMulSerializationMode",
        "MeanReductionStrategy",
        "MultiConvPlanType",
        "OutputMode",
        "OverlapMode",
        "ReductionType",
        "SharingStrategy",
        "SyncPattern",
        "VariableRetrievalMode",
    ),
    "losses": ("identity_loss",),
    "multi_conv": ("MultiConv",),
    "ops": (
        "ctc_beam_search_decoder",
        "dynamic_slice",
        "dynamic_update",
        "fps",
        "ipu_print_tensor",
        "isRunningOnIpu",
        "nearest",
        "nop",
        "recomputationCheckpoint",
        "serializedMatMul",
        "set_available_memory",
    ),
    "options": ("Options", "TensorLocationSettings"),
    "strategies": (
        "ParallelPhasedExecution",
        "Phase",
        "PipelinedExecution",
        "SerialPhasedExecution",
        "ShardedExecution",
        "Stage",
    ),
    "serving": ("Answer", "Server", "ServerStatistics", "serve"),
    "structures": ("ICustomArgParser", "registerCustomArgParser"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
_MODULES = frozenset(("ipu_config", "optim", "pipeline", "profiling"))

__all__ = sorted([*_HOME_OF, *_MODULES, "__version__"])


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"abele.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'abele' has no attribute {name!r}")
    importlib.import_module("abele._process").start()
    value = getattr(importlib.import_module(f"abele.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return __all__
