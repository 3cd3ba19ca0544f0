"""The user's own copy of the weights, outside of the process's memory."""

from __future__ import annotations

import os
from typing import TypeVar

import torch

from ._native import core

_Module = TypeVar("_Module", bound=torch.nn.Module)


def offload(model: _Module, folder: str | os.PathLike[str] | None = None) -> _Module:
    """Moves a module's parameters and buffers into a file, from which they come back when they are used.

    The tensors stay the tensors they are, with their values, views and sharing; their memory is mapped from a file
    without a name that is gone with the process. Until something reads or writes a tensor it takes no memory, and
    wrapped models take what they have copied to or from the devices out of memory again. As after
    `Tensor.share_memory_()`, processes that are forked later share the tensors.

    Args:
        model: a torch.nn.Module on the CPU.
        folder: where the file is; default: the system's temporary folder. Not one of a file system in memory.
    Returns: model.
    Raises:
        poptorch.UnrecoverableError: E0605 when the file cannot be made or does not fit; nothing is moved then.
    Source: ours.
    """
    core().offload([*model.parameters(), *model.buffers()], os.fspath(folder) if folder is not None else "")
    return model
