"""Checkpoints: stop a training run at any moment, resume it later, and get the numbers of a run that never stopped.

The files are those of C++'s abele::saveCheckpoint (include/abele/checkpoint.h). Either language resumes from the
other's.
"""

from __future__ import annotations

import collections
import contextlib
import json
import numbers
import operator
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from . import optim
from ._errors import user_error
from ._native import core
from ._random_states import check_random_states, random_states, set_random_states
from ._whole_files import native_path

if TYPE_CHECKING:
    from .executor import Executor

_FRONT = "python"  # name of the checkpoint's text for this module's values
_NUMBERS = "optimizer"
_NOTE = "note/"
# C++'s position in its data; also Python's, if samples come in order.
_PASS, _BATCHES, _IN_ORDER = "loader.pass", "loader.batches", "loader.in_order"
# Prefix of the checkpoint's tensors for random states.
_RANDOM = "random/"
_LOADER = "loader/"
_EXTRA = "extra/"


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
    """Writes all that the run needs to resume into one file of the folder.

    It holds the weights, the modules' get_extra_state(), the optimizer's state and numbers, the loss scale, the random
    states of the devices and of the host (torch's, numpy's and Python's), and the positions of the loader and the
    scheduler. The file is in the safetensors format, with a checksum of each tensor. After a crash of the process or
    the machine it is complete or missing. If there are several processes, all call this, and the first one writes. If
    each process holds only the weights of its own stages (a model that was made on the meta device), each writes a file
    of its tensors, and the first one also an index.

    Args:
        folder: made if it is missing.
        model: a training model that was called or compiled.
        loader: the DataLoader in use, or the AsynchronousDataAccessor.
        step: the caller's count; a checkpoint of the same step is replaced.
        keep: number of checkpoints to keep; 0 or None: all.
        scheduler: of torch.optim.lr_scheduler, or any object with state_dict() of plain values and load_state_dict().
        notes: a dict of plain values, which load_checkpoint returns.
    Returns: the path of the file or the index.
    Raises: E0705 before compile, E0702 for a negative step or keep and for values that are not plain, E0712 if the file
        cannot be written.
    """
    return model._save_checkpoint(
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
    """Resumes from the folder's newest checkpoint, or from the checkpoint of `step`.

    A model that is not compiled yet takes the devices' state when it is compiled. The loader's next pass continues
    after the last batch that was taken.

    Returns: the notes, with "step" and "path"; None if the folder has no checkpoint.
    Raises: E0501 for a damaged file, E0708 for a checkpoint of another model, E0706 for another optimizer, E0712 if
        `step` is missing or the checkpoint lacks the loader or scheduler.
    """
    if step is not None:
        step = _count("step", step)
    steps = core().checkpointSteps(native_path(folder))
    if step is None and not steps:
        return None
    path = os.fsdecode(core().checkpointPath(native_path(folder), steps[-1] if step is None else step))
    checkpoint = core().Checkpoint.read(native_path(path))
    numbers, front = _texts_of(checkpoint, path)
    modules = _modules_with_extra(model, front.get("extra", {}), path)
    of_cpp = None if "loader" in front else checkpoint.texts.get(_BATCHES)
    for given, name, is_known in ((loader, "loader", of_cpp is not None), (scheduler, "scheduler", False)):
        if given is not None and name not in front and not is_known:
            raise user_error(
                "E0712",
                f"the checkpoint has no position of a {name}",
                at=path,
                remedy=f"pass no {name}, or pass one when you write checkpoints in Python",
            )
    batches = None if loader is None or of_cpp is None else _batches_of_cpp(loader, checkpoint.texts, path)
    states = _checked_states(checkpoint, front, path)  # before anything changes
    model._load_checkpoint(checkpoint, numbers, front)
    for name, module in modules.items():
        module.set_extra_state(front["extra"][name])
    if scheduler is not None:
        scheduler.load_state_dict(front["scheduler"])
    if batches is not None:
        loader._seek_in_order(batches)
    elif loader is not None:
        loader._seek(front["loader"], states["loader"])
    if "random" in states:
        set_random_states(states["random"])
    notes = {name[len(_NOTE) :]: text for name, text in checkpoint.texts.items() if name.startswith(_NOTE)}  # from C++
    return {**notes, **front.get("notes", {}), "step": checkpoint.step, "path": path}


def save_tensors(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes tensors by name into a file of the safetensors format, with a checksum of each.

    Raises: E0708 for objects other than tensors by name, E0712.
    """
    for name, tensor in tensors.items():
        if not (isinstance(name, str) and isinstance(tensor, torch.Tensor)):
            raise user_error("E0708", f"{name!r} is a {type(tensor).__name__}", expected="tensors by name")
    core().writeTensorFile(native_path(path), dict(tensors))


def load_tensors(path: str | os.PathLike[str]) -> dict[str, torch.Tensor]:
    """Tensors by name from a file of the safetensors format, by any writer. Raises: E0712, E0501 for damage."""
    return core().readTensorFile(native_path(path))


def _write(checkpoint, folder, model, loader, step, keep, scheduler, notes):
    batches = None
    front = {"optimizer": _plain(optimizer_values(model._optimizer), "the optimizer"), "updates": model._native.updates}
    tensors, front["random"] = _split(random_states(), _RANDOM)
    if model._host_updates is not None:
        front["host_optimizer"] = _plain(model._host_updates.state(), "the optimizer's state", tensors)
    extra = {name: module.get_extra_state() for name, module in _extra_modules(model).items()}
    if extra:
        front["extra"] = _plain(extra, "the extra state of modules", tensors)
    if scheduler is not None:
        front["scheduler"] = _plain(scheduler.state_dict(), "the scheduler's state")
    if loader is not None:
        front["loader"], states = loader._position()
        of_loader, front["loader_random"] = _split(states, _LOADER)
        tensors.update(of_loader)
        batches = (front["loader"] or 0) if loader._is_in_order() else None
    if notes is not None:
        front["notes"] = _plain(dict(notes), "notes")
    checkpoint.step = _count("step", step)
    checkpoint.tensors = tensors
    checkpoint.texts = {_FRONT: json.dumps(front), _NUMBERS: core().textOfNumbers(model._native.optimizerSpec())}
    if batches is not None:  # for `abele run` and C++ programs
        checkpoint.texts = {**checkpoint.texts, _PASS: "0", _BATCHES: str(batches), _IN_ORDER: "yes"}
    return os.fsdecode(model._native.writeCheckpoint(native_path(folder), checkpoint, _count("keep", keep or 0)))


def _count(name, value):
    """The value as an int. The users of the count check for negative values. Raises: E0702."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or abs(number) >= 2**63:
        raise user_error("E0702", f"{name} is {value!r}", expected="a whole number of 64 bits")
    return number


def _batches_of_cpp(loader, texts, path):
    """Number of batches that a C++ loader had taken. Raises: E0712 if this loader cannot tell which ones they were."""
    batches = texts[_BATCHES]
    if not batches.isdecimal():
        raise user_error("E0501", "the checkpoint has text in place of a number", at=path, found=batches)
    if not (loader._is_in_order() and texts.get(_IN_ORDER) == "yes"):
        raise user_error(
            "E0712",
            "the checkpoint's position is that of a loader of C++, whose order of the samples is unknown here",
            at=path,
            expected="loaders of one process without shuffling or a sampler, in both languages",
            remedy="pass no loader, or write checkpoints with a loader that does not shuffle",
        )
    return int(batches)


@contextlib.contextmanager
def _reading(path):
    """In this context, errors of data that is not a checkpoint become E0501."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise user_error(
            "E0501",
            "a checkpoint whose texts are not those of a training run",
            at=path,
            found=f"{type(error).__name__}: {error}",
            remedy="use a checkpoint that save_checkpoint() wrote",
        ) from error


def _texts_of(checkpoint, path):
    """The optimizer's numbers, and Python's values (empty in a file of C++). Raises: E0501."""
    with _reading(path):
        numbers = json.loads(checkpoint.texts[_NUMBERS])
        front = _unpacked(json.loads(checkpoint.texts.get(_FRONT, "{}")), checkpoint.tensors)
        dict(front)
        for group in front.get("optimizer", numbers)["groups"]:
            dict(group)
    return numbers, front


def _checked_states(checkpoint, front, path):
    """Random states of the host and of the loader, if the file has them. Raises: E0501."""
    states = {}
    with _reading(path):
        for name, plain, prefix in (("random", "random", _RANDOM), ("loader", "loader_random", _LOADER)):
            if name in front:
                states[name] = _joined(checkpoint.tensors, front[plain], prefix)
                check_random_states(states[name])
        batches = front.get("loader")
        if isinstance(batches, bool) or not isinstance(batches, int | None) or (batches or 0) < 0:
            raise user_error(
                "E0501",
                "a checkpoint whose loader has made an impossible number of batches",
                at=path,
                found=repr(batches),
                remedy="use a checkpoint that save_checkpoint() wrote",
            )
        for name in ("extra", "notes"):
            dict(front.get(name, {}))
    return states


def _extra_modules(model):
    """Path -> module, of modules with an extra state."""
    none = torch.nn.Module.get_extra_state
    return {name: each for name, each in model._model.named_modules() if type(each).get_extra_state is not none}


def _modules_with_extra(model, extra, path):
    """The modules that the checkpoint's extra states belong to. Raises: E0708."""
    modules = _extra_modules(model)
    for name in extra.keys() - modules.keys():
        raise user_error(
            "E0708",
            f"the checkpoint has an extra state of {name or 'the model'}, and the model has no such module with one",
            at=path,
            expected="; ".join(modules) or "no module with get_extra_state",
            remedy="make the model as it was when the checkpoint was written",
        )
    return {name: modules[name] for name in extra}


def optimizer_values(optimizer):
    """The numbers of an optimizer's groups, and the loss scaling of one of our own optimizers."""
    groups = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    scaling = {"loss_scaling": optimizer.loss_scaling} if isinstance(optimizer, optim.Optimizer) else {}
    return {"groups": groups, **scaling}


def take_values(optimizer, named, front):
    """Puts a checkpoint's numbers into the optimizer. Requires: it has the same number of groups.

    Args:
        named: under C++'s names. front: Python's values; a file of C++ has none.
    """
    values = front.get("optimizer")
    for i, group in enumerate(optimizer.param_groups):
        if values is not None:
            group.update(values["groups"][i])
            continue
        given = named["groups"][i]
        if "betas" in group and "beta1" in given:
            group["betas"] = (given["beta1"], given["beta2"])
        group.update({name: _like_before(group[name], given[name]) for name in group if name in given})
    if isinstance(optimizer, optim.Optimizer):
        optimizer.loss_scaling = (values or named)["loss_scaling"]


def _like_before(old, number):
    """A number from C++ in this group's type: flags are bools, and None stays None unless the flag is on."""
    if old is None:
        return True if number else None
    return bool(number) if isinstance(old, bool) else number


# Random states -------------------------------------------------------------------------------------------------------
def _split(states, prefix):
    """(tensors, plain values) of random states. The tensors' names start with the prefix."""
    tensors = {f"{prefix}{name}": value for name, value in states.items() if isinstance(value, torch.Tensor)}
    return tensors, _plain({name: value for name, value in states.items() if not isinstance(value, torch.Tensor)}, "")


def _joined(tensors, plain, prefix):
    return {**plain, **{name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}}


# Plain values as JSON -----------------------------------------------------------------------------------------------
_KINDS = {"tuple": tuple, "dict": dict, "Counter": collections.Counter}


def _plain(value, where, tensors=None):
    """The value in JSON's types. Types that JSON lacks become {"kind": items}. Raises: E0702 for values that are not
    plain.

    Args:
        tensors: receives the value's tensors by name; None: tensors are refused.
    """
    if isinstance(value, torch.Tensor) and tensors is not None:
        name = f"{_EXTRA}{len(tensors)}"
        tensors[name] = value.detach().clone()
        return {"tensor": name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Real):  # such as numpy's
        return float(value)
    if isinstance(value, list):
        return [_plain(item, f"{where}[{i}]", tensors) for i, item in enumerate(value)]
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        return _plain(value.tolist(), where, tensors)
    for kind, cls in _KINDS.items():
        if type(value) is cls or (kind == "tuple" and isinstance(value, tuple)):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            keyed = isinstance(value, dict)
            plain = [(key, _plain(item, f"{where}[{key!r}]", tensors)) for key, item in items]
            return {kind: [[key, item] if keyed else item for key, item in plain]}
    raise user_error(
        "E0702",
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold",
        expected="None, numbers, texts, and lists, tuples and dicts of them",
        remedy="keep tensors in the model, and leave out what the program makes anew",
    )


def _unpacked(value, tensors):
    def inside(item):
        return _unpacked(item, tensors)

    if isinstance(value, list):
        return [inside(item) for item in value]
    if isinstance(value, dict) and len(value) == 1:
        ((kind, items),) = value.items()
        if kind == "tensor" and isinstance(items, str):
            return tensors[items]
        if kind in _KINDS and isinstance(items, list):
            if kind == "tuple":
                return tuple(inside(item) for item in items)
            return _KINDS[kind]({key: inside(item) for key, item in items})
    if isinstance(value, dict):
        return {key: inside(item) for key, item in value.items()}
    return value
