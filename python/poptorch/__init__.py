"""PopTorch's programming model on CPUs and GPUs: mark the blocks of a model, and one compiled step trains it.

Source of the names: spec index.md.
"""

# ruff: noqa: E402, F401, F403, I001
from . import _names

_names.publish()

from abele._native import add_package_folder as _add_package_folder
from abele._devices import ipuHardwareIsAvailable, ipuHardwareVersion
from abele._files import importPoptorchMetadataFromFile
from abele._hooks import registerPostCompileHook, registerPreCompileHook
from abele._process import poptorchAtExit
from abele._process import start as _start
from abele._tracing import getIpuTensorId
from abele._version import POPTORCH_VERSION as __version__  # noqa: N811

from . import _args_parser, _impl, _library_names, _poplar_executor, _utils, enums, ops, optim, options, profiling

_names.show(_poplar_executor, "executor")
_library_names.publish()

from ._async_accessor import AsynchronousDataAccessor
from ._errors import Error, RecoverableError, UnrecoverableError, createPoptorchError
from ._logging import logger, setLogLevel
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
from ._poplar_executor import PoplarExecutor, inferenceModel, load, trainingModel
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
    if name == "poptorch_core":
        import importlib

        return importlib.import_module("poptorch.poptorch_core")
    raise AttributeError(f"module 'poptorch' has no attribute {name!r}")


_add_package_folder(__file__)
_start()
registerGeometricCustomArgParsers()
