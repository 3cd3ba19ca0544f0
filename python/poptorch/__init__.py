"""PopTorch's programming model on CPUs and GPUs: mark the blocks of a model, and one compiled step trains it.

Source of the names: spec index.md.
"""

# ruff: noqa: F401, F403
import os as _os

_os.environ.setdefault("RDMAV_FORK_SAFE", "1")

from . import enums, ops, optim, options, profiling
from ._async_accessor import AsynchronousDataAccessor
from ._devices import ipuHardwareIsAvailable, ipuHardwareVersion
from ._errors import Error, RecoverableError, UnrecoverableError, createPoptorchError
from ._files import importPoptorchMetadataFromFile
from ._hooks import registerPostCompileHook, registerPreCompileHook
from ._logging import logger, setLogLevel
from ._process import poptorchAtExit
from ._process import start as _start
from ._tracing import getIpuTensorId
from ._version import __version__
from .annotations import (
    ATTR_PREFIX,
    Attribute,
    BeginBlock,
    Block,
    BlockFunction,
    LegacyBeginBlockFn,
    NameScope,
    accessAttributes,
    attributes_lists,
    module_repr,
    print,
    removeBlocks,
)
from .data import DataLoader
from .enums import *
from .executor import PoplarExecutor, inferenceModel, load, trainingModel
from .losses import identity_loss
from .ops import (
    CPU,
    MultiConv,
    cond,
    ctc_beam_search_decoder,
    custom_op,
    dynamic_slice,
    dynamic_update,
    for_loop,
    fps,
    ipu_print_tensor,
    isRunningOnIpu,
    nearest,
    nop,
    recomputationCheckpoint,
    serializedMatMul,
    set_available_memory,
    set_overlap_for_input,
    set_overlap_for_output,
)
from .options import *
from .structures import (
    ICustomArgParser,
    flattenTensorStructure,
    reconstructTensorStructure,
    registerCustomArgParser,
    registerGeometricCustomArgParsers,
)


def __getattr__(name):
    if name in ("poptorch_core", "_impl", "_poplar_executor"):
        import importlib

        return importlib.import_module(f"poptorch.{name}")
    raise AttributeError(f"module 'poptorch' has no attribute {name!r}")


_start()
registerGeometricCustomArgParsers()
