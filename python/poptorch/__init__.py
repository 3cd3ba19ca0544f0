"""PopTorch's programming model on CPUs and GPUs: mark the blocks of a model, and one compiled step trains it.

Source of the names: spec index.md.
"""

# ruff: noqa: E402, F403, I001
from . import _names

_names.publish()

from abele._native import (
    add_package_folder as _add_package_folder,
    poptorchAtExit as poptorchAtExit,
    start as _start,
)
from abele._devices import (
    ipuHardwareIsAvailable as ipuHardwareIsAvailable,
    ipuHardwareVersion as ipuHardwareVersion,
)
from abele._files import importPoptorchMetadataFromFile as importPoptorchMetadataFromFile
from abele._hooks import (
    registerPostCompileHook as registerPostCompileHook,
    registerPreCompileHook as registerPreCompileHook,
)
from abele._tracing import getIpuTensorId as getIpuTensorId
from abele._version import POPTORCH_VERSION as _VERSION

from . import (
    _args_parser as _args_parser,
    _impl as _impl,
    _library_names,
    _poplar_executor as _poplar_executor,
    _utils as _utils,
    enums as enums,
    ops as ops,
    optim as optim,
    options as options,
    poptorch_core as poptorch_core,
    profiling as profiling,
)

_names.show(_poplar_executor, "executor")
_library_names.publish()

from abele._async_accessor import AsynchronousDataAccessor as AsynchronousDataAccessor
from abele._errors import (
    Error as Error,
    RecoverableError as RecoverableError,
    UnrecoverableError as UnrecoverableError,
    createPoptorchError as createPoptorchError,
)
from abele._logging import (
    logger as logger,
    setLogLevel as setLogLevel,
)
from .annotations import (
    ATTR_PREFIX as ATTR_PREFIX,
    Attribute as Attribute,
    BeginBlock as BeginBlock,
    Block as Block,
    BlockFunction as BlockFunction,
    LegacyBeginBlockFn as LegacyBeginBlockFn,
    NameScope as NameScope,
    accessAttributes as accessAttributes,
    attributes_lists as attributes_lists,
    module_repr as module_repr,
    print as print,
    removeBlocks as removeBlocks,
)
from .data import DataLoader as DataLoader
from .enums import *
from ._poplar_executor import (
    PoplarExecutor as PoplarExecutor,
    inferenceModel as inferenceModel,
    load as load,
    trainingModel as trainingModel,
)
from .losses import identity_loss as identity_loss
from .ops import (
    CPU as CPU,
    MultiConv as MultiConv,
    cond as cond,
    ctc_beam_search_decoder as ctc_beam_search_decoder,
    custom_op as custom_op,
    dynamic_slice as dynamic_slice,
    dynamic_update as dynamic_update,
    for_loop as for_loop,
    fps as fps,
    ipu_print_tensor as ipu_print_tensor,
    isRunningOnIpu as isRunningOnIpu,
    nearest as nearest,
    nop as nop,
    recomputationCheckpoint as recomputationCheckpoint,
    serializedMatMul as serializedMatMul,
    set_available_memory as set_available_memory,
    set_overlap_for_input as set_overlap_for_input,
    set_overlap_for_output as set_overlap_for_output,
)
from .options import *
from .structures import (
    ICustomArgParser as ICustomArgParser,
    flattenTensorStructure as flattenTensorStructure,
    reconstructTensorStructure as reconstructTensorStructure,
    registerCustomArgParser as registerCustomArgParser,
    registerGeometricCustomArgParsers as registerGeometricCustomArgParsers,
)


__version__ = _VERSION
_add_package_folder(__file__)
_start()
registerGeometricCustomArgParsers()
