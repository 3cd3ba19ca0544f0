"""Abele: model-parallel compiler and runtime for PyTorch.

The same product as the package `poptorch`, without the limits that only the original hardware had: pipelines of any
length, any number of devices, and one compiled program per shape of the inputs. Names are loaded at their first use.
"""

import importlib

# Names of poptorch that are Abele's own as well.
_SHARED = frozenset(
    (
        "AutoStage",
        "BeginBlock",
        "Block",
        "BlockFunction",
        "DataLoader",
        "DataLoaderMode",
        "Error",
        "Liveness",
        "NameScope",
        "Options",
        "OutputMode",
        "PipelinedExecution",
        "RecoverableError",
        "ParallelPhasedExecution",
        "Phase",
        "ReductionType",
        "SerialPhasedExecution",
        "ShardedExecution",
        "Stage",
        "TensorLocationSettings",
        "UnrecoverableError",
        "identity_loss",
        "module_repr",
        "nop",
        "optim",
        "recomputationCheckpoint",
        "removeBlocks",
    )
)
_OWN = frozenset(("CompiledModel", "explain", "inferenceModel", "isCapturing", "load", "trainingModel"))
_SIMULATE = frozenset(("Simulation", "simulate"))
_OFFLOAD = frozenset(("offload",))
_VERIFY = frozenset(("Difference", "Verification", "verify"))
_MODULES = frozenset(("ipu_config", "pipeline"))

__all__ = sorted(_SHARED | _OWN | _SIMULATE | _OFFLOAD | _VERIFY | _MODULES)


def __getattr__(name):
    if name in _SHARED:
        value = getattr(importlib.import_module("poptorch"), name)
    elif name in _OWN:
        value = getattr(importlib.import_module("abele._models"), name)
    elif name in _SIMULATE:
        value = getattr(importlib.import_module("abele._simulate"), name)
    elif name in _OFFLOAD:
        value = getattr(importlib.import_module("abele._offload"), name)
    elif name in _VERIFY:
        value = getattr(importlib.import_module("abele._verify"), name)
    elif name in _MODULES:
        value = importlib.import_module(f"abele.{name}")
    else:
        raise AttributeError(f"module 'abele' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__():
    return __all__
