"""Weights of models in safetensors files, and models that are made on the meta device.

The files are those of Hugging Face: one, or several beside an index. C++ loads and saves them too
(include/abele/checkpoint.h).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import torch

from . import wrapping
from ._errors import userError
from ._models import inferenceModel
from ._native import core
from ._whole_files import nativePath
from .executor import Executor

_RESETS = ("reset_parameters", "_reset_parameters")  # the second one of torch.nn.MultiheadAttention and Transformer


def load_weights(path: str | os.PathLike[str], model: torch.nn.Module | Executor, *, convert: bool = False) -> None:
    """Fills a model's parameters and buffers from safetensors files, and sends them to the devices.

    Only what is needed is read, straight into the tensors. Of a wrapped model on the meta device nothing is read before
    it is compiled, and then in each process what its devices have; tensors of other stages stay on the meta device.

    Args:
        path: a file, an index of several (model.safetensors.index.json), or a folder that has model.safetensors or
            such an index.
        model: a module, or what trainingModel or inferenceModel returned.
        convert: True: tensors of another element type are converted; else they are refused.
    Raises:
        abele.Error: E0708 for files that lack a tensor of the model, have one that it has not, or have one in another
            shape or type, E0501 for damaged files, E0712 for those that cannot be read: then nothing has changed.
    """
    files = core().WeightFiles(nativePath(path), convert)
    executor, module = _partsOf(model)
    if executor is not None:
        with executor._lock:
            executor._native.loadWeights(files, _targetsOf(module))
        return
    targets = _targetsOf(module)
    files.require(targets)
    given = core().giveMemory([target.tensor for target in targets])
    try:
        files.requireWhole(targets)
        for target in targets:
            files.fill(target)
    except BaseException:
        core().takeMemory(given)
        raise


def save_weights(folder: str | os.PathLike[str], model: torch.nn.Module | Executor) -> None:
    """Writes a model's newest parameters and buffers into the folder, as load_weights takes them.

    One process writes model.safetensors. Where several hold the stages of the model all call this: each writes a file
    of what its devices have, model-00001-of-00004.safetensors and so on, and the first one the index. Tied tensors are
    written once, buffers that are no part of state_dict() are not.

    Args:
        folder: is made where it is missing; files of such names in it are replaced.
        model: as for load_weights.
    Raises:
        abele.Error: E0712, in all processes where one cannot write.
    """
    executor, module = _partsOf(model)
    targets = _targetsOf(module)
    executor = inferenceModel(module) if executor is None else executor  # which is never compiled
    with executor._lock:
        left_out = [target.names[0] for target in targets if target.may_be_missing]
        executor._native.saveWeights(nativePath(folder), left_out)


def weights(model: torch.nn.Module | Executor) -> Iterator[tuple[str, torch.Tensor]]:
    """The newest parameters and buffers of a model, one after the other: names of its state_dict(), and copies.

    Where several processes hold the stages all go through it, and each has them all: one tensor at a time, so that a
    process which keeps none needs memory for one. `dict(abele.weights(model))` is a complete state_dict.

    Args:
        model: as for load_weights.
    Yields: (name, tensor); tied tensors under each of their names.
    Raises:
        abele.Error: E0713 where the processes do different things, E0606 where one has ended.
    """
    executor, module = _partsOf(model)
    for target in _targetsOf(module):
        if target.may_be_missing:
            continue
        if executor is None:
            value = target.tensor.detach().clone()
        else:
            with executor._lock:
                value = executor._native.weight(target.names[0])
        for name in target.names:
            yield name, value


def optimizer_state(model: torch.nn.Module | Executor) -> Iterator[tuple[str, torch.Tensor]]:
    """The devices' optimizer state, one tensor after the other: names as "exp_avg/encoder.weight", and copies.

    Where several processes hold the stages all go through it, and each has them all, as with weights(). A model that
    trains nothing, or was not called or compiled, has none.

    Args:
        model: what trainingModel returned, or its module.
    Yields: (name, tensor).
    Raises:
        abele.Error: E0713 where the processes do different things, E0606 where one has ended.
    """
    executor, _ = _partsOf(model)
    if executor is None:
        return
    if executor._host_updates is not None:
        executor._host_updates.requireStateOfDevices()
    with executor._lock:
        state = executor._native.optimizerState()
    for name in state.names:
        with executor._lock:
            value = executor._native.read(state, name)
        yield name, value


def init_weights(model: torch.nn.Module | Executor, seed: int) -> None:
    """Draws a model's parameters by its modules' own reset_parameters(), with this seed.

    The modules come children first and in the order in which they were registered, as constructors draw. The numbers
    are the same for a module on the host, and for one on the meta device in however many processes: each draws all
    tensors, a module at a time, and keeps what its devices have. A wrapped model on the meta device is drawn when it is
    compiled. The program's own random numbers stay where they are.

    Args:
        model: as for load_weights.
        seed: of torch's generator.
    Raises:
        abele.Error: E0708 for a module that has parameters or buffers and no reset_parameters().
    """
    executor, module = _partsOf(model)
    with wrapping.withoutPull():
        _requireResets(module)
        is_meta = any(target.tensor.is_meta for target in _targetsOf(module))
    if executor is None:
        _draw(module, seed, None)
        return
    with executor._lock:
        if is_meta:
            executor._native.fillMetaTensors(lambda names: _draw(module, seed, set(names)))
            return
        executor.copyWeightsToHostIfNeeded()
        _draw(module, seed, None)
        if executor.isCompiled() and executor.isAttachedToDevice():
            executor.copyWeightsToDevice()


def _partsOf(model):
    """(executor or None, module)."""
    if isinstance(model, Executor):
        return model, model._model
    if not isinstance(model, torch.nn.Module):
        raise userError(
            "E0708",
            f"weights of a {type(model).__name__}",
            expected="a torch.nn.Module, or what trainingModel or inferenceModel returned",
        )
    return wrapping.trainerOf(model), model


def _targetsOf(module):
    """A native WeightTarget of each parameter and buffer, tied ones with all their names."""
    with wrapping.withoutPull():
        names, tensors = {}, {}
        for name, tensor in [
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ]:
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
        left_out = {
            f"{path}.{name}" if path else name
            for path, each in module.named_modules(remove_duplicate=False)
            for name in each._non_persistent_buffers_set
        }
        return [core().WeightTarget(names[key], tensors[key], left_out.issuperset(names[key])) for key in tensors]


def _resetOf(module):
    return next((getattr(module, name) for name in _RESETS if callable(getattr(module, name, None))), None)


def _childrenFirst(module, path="", seen=None):
    """(path, module) of each module once."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    for name, child in module.named_children():
        yield from _childrenFirst(child, f"{path}.{name}" if path else name, seen)
    yield path, module


def _requireResets(module):
    for path, each in _childrenFirst(module):
        own = [*each.named_parameters(recurse=False), *each.named_buffers(recurse=False)]
        if own and _resetOf(each) is None:
            raise userError(
                "E0708",
                f"the module {path or type(each).__name__} cannot be initialised: it has no reset_parameters()",
                found=f"a {type(each).__name__} with {', '.join(name for name, _ in own)}",
                expected="reset_parameters() in each module that has parameters or buffers",
                remedy="give its class one, or load files: abele.load_weights(path, model)",
            )


def _draw(module, seed, needed):
    """Calls reset_parameters() of all modules, in whose tensors there is memory meanwhile.

    Args:
        needed: names of tensors that keep the memory they are given; None: all.
    """
    with wrapping.withoutPull(), torch.random.fork_rng(devices=[]), torch.no_grad():
        kept = {id(target.tensor) for target in _targetsOf(module) if needed is None or target.names[0] in needed}
        torch.manual_seed(seed)
        for _, each in _childrenFirst(module):
            reset = _resetOf(each)
            if reset is None:
                continue
            tensors = [*each.parameters(), *each.buffers()]  # a module may change those of its children too
            core().giveMemory([tensor for tensor in tensors if id(tensor) in kept])
            given = core().giveMemory([tensor for tensor in tensors if id(tensor) not in kept])
            try:
                reset()
            finally:
                core().takeMemory(given)
