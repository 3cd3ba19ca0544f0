"""Moves the user's own copy of the weights out of the process's memory."""

from __future__ import annotations

import os
from typing import TypeVar

import torch

from ._native import core

_Module = TypeVar("_Module", bound=torch.nn.Module)


def offload(model: _Module, folder: str | os.PathLike[str] | None = None) -> _Module:
    """Moves a module's parameters and buffers into a file, which is read when they are used.

    The tensors stay the same objects, with their values, views and sharing. Their memory is mapped from a file without
    a name, which ends with the process. A tensor takes no memory until it is read or written. Wrapped models free the
    memory again after copies to or from the devices. As after `Tensor.share_memory_()`, processes that are forked later
    share the tensors.

    Args:
        model: a torch.nn.Module on the CPU.
        folder: the file's folder; default: the system's temporary folder. It must not be in a file system in memory.
    Returns: model.
    Raises:
        poptorch.UnrecoverableError: E0605, without any change, if the file cannot be made or does not fit.
    Source: ours.
    """
    core().offload([*model.parameters(), *model.buffers()], os.fspath(folder) if folder is not None else "")
    return model
