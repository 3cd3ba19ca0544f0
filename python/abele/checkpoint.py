"""Checkpoints: stop a training run at any moment and go on later, with the numbers of one that never stopped.

The same files as C++'s abele::saveCheckpoint (include/abele/checkpoint.h); either language goes on from the other's.
"""

from __future__ import annotations

import collections
import json
import numbers
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import optim
from ._errors import userError
from ._files import nativePath
from ._native import core
from ._random_states import randomStates, setRandomStates

if TYPE_CHECKING:
    from .executor import Executor

_FRONT = "python"  # of the checkpoint's texts: what this module wants back
_NUMBERS = "optimizer"
_NOTE = "note/"
# Of the checkpoint's tensors.
_RANDOM = "random/"
_LOADER = "loader/"


def save_checkpoint(
    folder: str | os.PathLike[str],
    model: Executor,
    loader: Any = None,
    *,
    step: int,
    keep: int | None = 3,
    scheduler: Any = None,
    notes: dict[str, Any] | None = None,
) -> Any:
    """Writes all that the run needs to go on into one file of the folder.

    Weights, the optimizer's state and numbers, the loss scale, the random numbers of the devices and of the host
    (torch's, numpy's and Python's), and where the loader and the scheduler are. The file is in the safetensors format,
    with a checksum of each tensor. After a crash of the process or the machine it is there whole or not at all. Of
    several processes all call this, and the first one writes.

    Args:
        folder: made if it is missing.
        model: a training model that was called or compiled.
        loader: the DataLoader that is being iterated, not an asynchronous one.
        step: the caller's count; a checkpoint of the same step is replaced.
        keep: so many of the last steps stay; 0: all.
        scheduler: of torch.optim.lr_scheduler, or whatever has state_dict() of plain values and load_state_dict().
        notes: a dict of plain values, which load_checkpoint gives back.
    Returns: the file's path.
    Raises: E0705 before compile, E0702 for a negative step or keep and for values that are not plain, E0712 when the
        file cannot be written, E0801 for an asynchronous loader.
    """
    return model._saveCheckpoint(
        lambda checkpoint: _write(checkpoint, folder, model, loader, step, keep, scheduler, notes)
    )


def load_checkpoint(
    folder: str | os.PathLike[str],
    model: Executor,
    loader: Any = None,
    *,
    step: int | None = None,
    scheduler: Any = None,
) -> dict[str, Any] | None:
    """Goes on from the folder's newest checkpoint, or from that of `step`.

    A model that is not compiled yet takes the devices' state when it is. The loader's next pass goes on behind the last
    batch that was taken before.

    Returns: the notes, with "step" and "path"; None where the folder has no checkpoint.
    Raises: E0501 for a damaged file, E0708 for one of another model, E0706 for another optimizer, E0712 where `step` is
        missing or the checkpoint has no loader or scheduler.
    """
    steps = core().checkpointSteps(nativePath(folder))
    if step is None and not steps:
        return None
    path = os.fsdecode(core().checkpointPath(nativePath(folder), steps[-1] if step is None else step))
    checkpoint = core().Checkpoint.read(nativePath(path))
    front = _frontOf(checkpoint, path)
    for given, name in ((loader, "loader"), (scheduler, "scheduler")):
        if given is not None and name not in front:
            raise userError(
                "E0712",
                "file",
                f"the checkpoint has no position of a {name}",
                at=path,
                remedy=f"pass no {name}, or write checkpoints in Python with one",
            )
    model._loadCheckpoint(checkpoint, json.loads(checkpoint.texts[_NUMBERS]), front)
    if scheduler is not None:
        scheduler.load_state_dict(front["scheduler"])
    if loader is not None:
        loader._seek(front["loader"], _joined(checkpoint.tensors, front["loader_random"], _LOADER))
    if "random" in front:
        setRandomStates(_joined(checkpoint.tensors, front["random"], _RANDOM))
    notes = {name[len(_NOTE) :]: text for name, text in checkpoint.texts.items() if name.startswith(_NOTE)}  # of C++
    return {**notes, **front.get("notes", {}), "step": checkpoint.step, "path": path}


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors by name into a file of the safetensors format, with a checksum of each. Raises: E0712."""
    core().writeTensorFile(nativePath(path), dict(tensors))


def load_tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Tensors by name from a file of the safetensors format, whoever wrote it. Raises: E0712, E0501 for damage."""
    return core().readTensorFile(nativePath(path))


def _write(checkpoint, folder, model, loader, step, keep, scheduler, notes):
    front = {"optimizer": _plain(optimizerValues(model._optimizer), "the optimizer"), "updates": model._updates}
    tensors, front["random"] = _split(randomStates(), _RANDOM)
    if scheduler is not None:
        front["scheduler"] = _plain(scheduler.state_dict(), "the scheduler's state")
    if loader is not None:
        front["loader"], states = loader._position()
        of_loader, front["loader_random"] = _split(states, _LOADER)
        tensors.update(of_loader)
    if notes is not None:
        front["notes"] = _plain(dict(notes), "notes")
    checkpoint.step = step
    checkpoint.tensors = tensors
    checkpoint.texts = {_FRONT: json.dumps(front), _NUMBERS: core().textOfNumbers(model._optimizerSpec())}
    if model.options.Distributed.processId != 0:
        return os.fsdecode(core().checkpointPath(nativePath(folder), step))
    return os.fsdecode(checkpoint.write(nativePath(folder), keep))


def _frontOf(checkpoint, path):
    """What Python wrote; of a file of C++ nothing."""
    if _NUMBERS not in checkpoint.texts:
        raise userError("E0501", "executable-format", "a checkpoint without an optimizer's numbers", at=path)
    return _unpacked(json.loads(checkpoint.texts.get(_FRONT, "{}")))


def optimizerValues(optimizer):
    """The numbers of an optimizer's groups, and the loss scaling of one of ours."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    scaling = {"loss_scaling": optimizer.loss_scaling} if isinstance(optimizer, optim.Optimizer) else {}
    return {"groups": groups, **scaling}


def takeValues(optimizer, named, front):
    """Puts a checkpoint's numbers into the optimizer. Requires: it has as many groups.

    Args:
        named: as C++ names them. front: what Python wrote; C++ writes none.
    """
    values = front.get("optimizer")
    for i, group in enumerate(optimizer.param_groups):
        if values is not None:
            group.update(values["groups"][i])
            continue
        given = named["groups"][i]
        if "betas" in group and "beta1" in given:
            group["betas"] = (given["beta1"], given["beta2"])
        group.update({name: given[name] for name in group if name in given})
    if isinstance(optimizer, optim.Optimizer):
        optimizer.loss_scaling = (values or named)["loss_scaling"]


# Random states -------------------------------------------------------------------------------------------------------
def _split(states, prefix):
    """(tensors, plain values) of random states; the tensors under the prefix."""
    tensors = {f"{prefix}{name}": value for name, value in states.items() if isinstance(value, torch.Tensor)}
    return tensors, _plain({name: value for name, value in states.items() if not isinstance(value, torch.Tensor)}, "")


def _joined(tensors, plain, prefix):
    return {**plain, **{name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}}


# Plain values as JSON -----------------------------------------------------------------------------------------------
_KINDS = {"tuple": tuple, "dict": dict, "Counter": collections.Counter}


def _plain(value, where):
    """The value as JSON can say it; what JSON lacks is {"kind": items}. Raises: E0702 for what is not plain data."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Real):  # of numpy, say
        return float(value)
    if isinstance(value, list):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist(), where)
    for kind, cls in _KINDS.items():
        if type(value) is cls or (kind == "tuple" and isinstance(value, tuple)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            keyed = isinstance(value, dict)
            return {
                kind: [
                    [key, _plain(item, f"{where}[{key!r}]")] if keyed else _plain(item, f"{where}[{key}]")
                    for key, item in items
                ]
            }
    raise userError(
        "E0702",
        "option-value",
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold",
        expected="None, numbers, texts, and lists, tuples and dicts of them",
        remedy="keep tensors in the model, and leave out what the program makes anew",
    )


def _unpacked(value):
    if isinstance(value, list):
        return [_unpacked(item) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        ((kind, items),) = value.items()
        if kind in _KINDS and isinstance(items, list):
            if kind == "tuple":
                return tuple(_unpacked(item) for item in items)
            return _KINDS[kind]({key: _unpacked(item) for key, item in items})
    if isinstance(value, dict):
        return {key: _unpacked(item) for key, item in value.items()}
    return value
