"""Model wrapping: trainingModel, inferenceModel and the executor they return, with PopTorch's limits.

Programs import the class from here and from poptorch.executor. Source: spec executor.md; clients.md, point 11.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch
from abele._native import core
from abele._version import POPTORCH_VERSION
from abele.executor import Executor, _rebuild, load_as  # noqa: F401  (pickled executors name _rebuild)
from abele.options import Options

from ._device_name import redirected_calls
from ._library_names import ArgsParser, ExecutorNames, require_manager

# PopTorch's limits that programs can see (src/calls/policy.h). Gaps of its devices are not among them.
POLICY = core().Policy(
    many_programs=False,
    many_structures=False,
    torch_updates=False,
    shares_weights=False,
    checks_captures=False,
    short_pipelines=False,
    wide_numbers=False,
    repeats_constants=False,
    most_devices=64,
    input_types=[
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    ],
)


class _OverwriteContextManager:
    """The context around forward and backward while they are captured: the device name "ipu", and libraries'
    replacements of torch's functions. A library that wants replacements only for its own executors executes this module
    again."""

    _managers = []

    @classmethod
    def registerSubsitutionManager(cls, manager):
        """Registers a class. Its objects replace() functions before a capture and restore() them after it."""
        require_manager(manager)
        cls._managers.append(manager)

    @classmethod
    @contextlib.contextmanager
    def around(cls, rules):
        with redirected_calls(rules), contextlib.ExitStack() as stack:
            for kind in cls._managers:
                manager = kind()
                stack.callback(manager.restore)
                manager.replace()
            yield


class _AnyExecutor(type):
    """Makes isinstance(executor, PoplarExecutor) true for every executor, including those of abele."""

    def __subclasscheck__(cls, subclass):
        return issubclass(subclass, Executor) if cls is PoplarExecutor else super().__subclasscheck__(subclass)

    def __instancecheck__(cls, instance):
        return issubclass(type(instance), cls)


class PoplarExecutor(ExecutorNames, Executor, metaclass=_AnyExecutor):
    """A wrapped model: calling it runs one step on the devices. Made by trainingModel and inferenceModel.

    Threads: safe; calls of several threads run one after another, each with the weights of the previous one.
    """

    _around = staticmethod(_OverwriteContextManager.around)
    _parser_of = ArgsParser
    _traces_copies = True

    def __init__(
        self,
        model: Any,
        options: Options | None,
        training: bool,
        poptorch_version: str,
        optimizer: torch.optim.Optimizer | None = None,
        user_model: Any = None,
    ) -> None:
        super().__init__(model, options, training, poptorch_version, optimizer, user_model, policy=POLICY)


def trainingModel(
    model: torch.nn.Module | Executor, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """Wraps a module for training.

    Args:
        model: torch.nn.Module whose forward computes the loss, or an executor (then its model is taken).
        options: Options; frozen from now on.
        optimizer: SGD, Adam or AdamW of torch.optim or poptorch.optim; default SGD with learning rate 0.01.
    Returns: an executor: calling it runs forward, backward and update.
    Raises:
        RuntimeError: the model is wrapped for training already.
    """
    return PoplarExecutor(model, options, True, POPTORCH_VERSION, optimizer)


def inferenceModel(model: torch.nn.Module | Executor, options: Options | None = None) -> PoplarExecutor:
    """Wraps a module for inference. Weights shared with a training executor are kept in step.

    Args:
        model: torch.nn.Module, or an executor (then its model is taken).
        options: Options; frozen from now on.
    Returns: an executor: calling it runs forward.
    """
    return PoplarExecutor(model, options, False, POPTORCH_VERSION)


def load(filename: str | os.PathLike[str], edit_opts_fn: Callable[[Options], Any] | None = None) -> PoplarExecutor:
    """An executor from a file that save() or compileAndExport() wrote, with model, weights, optimizer and random state.

    The file holds the module as a pickle, and reading a pickle runs what its author put there: load files that you
    trust, as with torch.load(weights_only=False). `executor.loadExecutable(filename)` runs nothing of a file.
    A file that C++ wrote has no module: its parameters and buffers are then those of a module without a forward.

    Args:
        filename: the file.
        edit_opts_fn: called with the options before the model is wrapped. Options of devices, logs, folders, the
            seed and the output mode count; a warning names others that it changed, which are ignored.
    Returns: a compiled executor that is not connected to any other.
    Raises:
        AssertionError: the file was written by another version, or without the model.
    """
    return load_as(PoplarExecutor, filename, edit_opts_fn)


__all__ = ["PoplarExecutor", "inferenceModel", "load", "trainingModel"]
