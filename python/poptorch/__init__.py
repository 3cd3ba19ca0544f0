"""PopTorch's programming model on CPUs and GPUs: mark the blocks of a model, and one compiled step trains it.

Source of the names: spec index.md.
"""
import os as _os

_os.environ.setdefault("RDMAV_FORK_SAFE", "1")

from . import enums, optim, ops, options, profiling  # noqa: E402
from ._devices import ipuHardwareIsAvailable, ipuHardwareVersion  # noqa: E402
from ._errors import Error, RecoverableError, UnrecoverableError, createPoptorchError  # noqa: E402
from ._hooks import registerPostCompileHook, registerPreCompileHook  # noqa: E402
from ._logging import logger, setLogLevel  # noqa: E402
from ._version import __version__  # noqa: E402
from .annotations import (  # noqa: E402
    ATTR_PREFIX, Attribute, BeginBlock, Block, BlockFunction, LegacyBeginBlockFn, NameScope, accessAttributes,
    attributes_lists, module_repr, print, removeBlocks)
from .data import AsynchronousDataAccessor, DataLoader  # noqa: E402
from .enums import *  # noqa: E402, F403
from .executor import PoplarExecutor, inferenceModel, trainingModel  # noqa: E402
from .losses import identity_loss  # noqa: E402
from .ops import isRunningOnIpu, nop, recomputationCheckpoint, set_available_memory  # noqa: E402
from .options import *  # noqa: E402, F403
from .structures import (  # noqa: E402
    ICustomArgParser, flattenTensorStructure, reconstructTensorStructure, registerCustomArgParser,
    registerGeometricCustomArgParsers)

# Names of PopTorch that this version does not have.
_NOT_YET = frozenset((
    "CPU", "MultiConv", "cond", "ctc_beam_search_decoder", "custom_op", "dynamic_slice", "dynamic_update", "for_loop", "fps",
    "getIpuTensorId", "importPoptorchMetadataFromFile", "ipu_print_tensor", "load", "nearest", "serializedMatMul",
    "set_overlap_for_input", "set_overlap_for_output"))


def __getattr__(name):
    if name in _NOT_YET:
        raise AttributeError(f"poptorch.{name} is not available in this version")
    if name == "poptorch_core":
        import importlib
        return importlib.import_module("poptorch.poptorch_core")
    raise AttributeError(f"module 'poptorch' has no attribute {name!r}")


registerGeometricCustomArgParsers()
