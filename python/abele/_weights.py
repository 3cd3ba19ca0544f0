"""Weights of models in safetensors files, and models that are made on the meta device.

The files are those of Hugging Face: one, or several beside an index. C++ loads and saves them too
(include/abele/checkpoint.h).
"""

import os
from collections.abc import Iterator
from typing import TypeVar

import torch

from . import wrapping
from ._errors import user_error
from ._models import inferenceModel
from ._native import core
from ._whole_files import native_path
from .executor import Executor

_Module = TypeVar("_Module", bound=torch.nn.Module)
_RESETS = ("reset_parameters", "_reset_parameters")  # the second one of torch.nn.MultiheadAttention and Transformer


def load_weights(path: str | os.PathLike[str], model: torch.nn.Module | Executor, *, convert: bool = False) -> None:
    """Fills a model's parameters and buffers from safetensors files, and uploads them to the devices.

    Reads only what is needed, straight into the tensors. A wrapped model on the meta device reads when it is compiled,
    and each process then reads only the tensors of its own devices. Tensors of other stages stay on the meta device.

    Args:
        path: a file, an index of several files (model.safetensors.index.json), or a folder that has model.safetensors
            or such an index.
        model: a module, or the result of trainingModel or inferenceModel.
        convert: True: convert tensors of another element type; False: refuse them.
    Raises:
        abele.Error: without any change: E0708 for files that lack a tensor of the model, have an unknown tensor, or
            have a tensor in another shape or type; E0501 for damaged files; E0712 for files that cannot be read.
    """
    files = core().WeightFiles(native_path(path), convert)
    executor, module = _parts_of(model)
    if executor is not None:
        with executor._lock:
            executor._native.loadWeights(files, _targets_of(module))
        return
    targets = _targets_of(module)
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
    """Writes a model's newest parameters and buffers into the folder, in the form that load_weights reads.

    A single process writes model.safetensors. If several processes hold the stages of the model, all call this: each
    writes the tensors of its devices (model-00001-of-00004.safetensors and so on), and the first one also the index.
    Tied tensors are written once. Buffers outside of state_dict() are left out.

    Args:
        folder: is made if it is missing; files of such names in it are replaced.
        model: as for load_weights.
    Raises:
        abele.Error: E0712, in all processes if one of them cannot write.
    """
    executor, module = _parts_of(model)
    targets = _targets_of(module)
    executor = inferenceModel(module) if executor is None else executor  # a wrapper only; it is never compiled
    with executor._lock:
        left_out = [target.names[0] for target in targets if target.may_be_missing]
        executor._native.saveWeights(native_path(folder), left_out)


def weights(model: torch.nn.Module | Executor) -> Iterator[tuple[str, torch.Tensor]]:
    """The newest parameters and buffers of a model, one after the other: names of its state_dict(), and copies.

    If several processes hold the stages, all iterate over it, and each gets all tensors, one at a time. So a process
    that keeps none of them needs memory for one. `dict(abele.weights(model))` is a complete state_dict.

    Args:
        model: as for load_weights.
    Yields: (name, tensor); tied tensors under each of their names.
    Raises:
        abele.Error: E0713 if the processes do different things, E0606 if one has ended.
    """
    executor, module = _parts_of(model)
    for target in _targets_of(module):
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
    """The devices' optimizer state, one tensor after the other: names such as "exp_avg/encoder.weight", and copies.

    If several processes hold the stages, all iterate over it, and each gets all tensors, as with weights(). Nothing is
    yielded for a model that does not train, or that was not called or compiled.

    Args:
        model: the result of trainingModel, or its module.
    Yields: (name, tensor).
    Raises:
        abele.Error: E0713 if the processes do different things, E0606 if one has ended.
    """
    executor, _ = _parts_of(model)
    if executor is None:
        return
    if executor._host_updates is not None:
        executor._host_updates.require_state_of_devices()
    with executor._lock:
        state = executor._native.optimizerState()
    for name in state.names:
        with executor._lock:
            value = executor._native.read(state, name)
        yield name, value


def init_weights(model: torch.nn.Module | Executor, seed: int) -> None:
    """Initialises a model's parameters by its modules' own reset_parameters(), with this seed.

    The order is that of constructors: children first, as they were registered. The numbers are the same for a module on
    the host and for one on the meta device with any number of processes: each process draws all tensors, one module at
    a time, and keeps those of its devices. A wrapped model on the meta device is initialised when it is compiled. The
    program's own random state does not change.

    Args:
        model: as for load_weights.
        seed: of torch's generator.
    Raises:
        abele.Error: E0708 for a module with parameters or buffers and without reset_parameters().
    """
    executor, module = _parts_of(model)
    with wrapping.without_pull():
        _require_resets(module)
        is_meta = wrapping.has_meta_tensors(module)
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


def _parts_of(model):
    """(executor or None, module)."""
    if isinstance(model, Executor):
        return model, model._model
    if not isinstance(model, torch.nn.Module):
        raise user_error(
            "E0708",
            f"weights of a {type(model).__name__}",
            expected="a torch.nn.Module, or what trainingModel or inferenceModel returned",
        )
    return wrapping.trainer_of(model), model


def _targets_of(module):
    """A native WeightTarget per parameter and buffer; tied ones have all their names."""
    with wrapping.without_pull():
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


def _reset_of(module):
    return next((getattr(module, name) for name in _RESETS if callable(getattr(module, name, None))), None)


def _children_first(module, path="", seen=None):
    """(path, module) of each module, once, children first."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    for name, child in module.named_children():
        yield from _children_first(child, f"{path}.{name}" if path else name, seen)
    yield path, module


def _require_resets(module):
    for path, each in _children_first(module):
        own = [*each.named_parameters(recurse=False), *each.named_buffers(recurse=False)]
        if own and _reset_of(each) is None:
            raise user_error(
                "E0708",
                f"the module {path or type(each).__name__} cannot be initialised: it has no reset_parameters()",
                found=f"a {type(each).__name__} with {', '.join(name for name, _ in own)}",
                expected="reset_parameters() in each module that has parameters or buffers",
                remedy="give its class one, or load files: abele.load_weights(path, model)",
            )


def _draw(module, seed, needed):
    """Calls reset_parameters() of all modules. Their tensors have memory meanwhile.

    Args:
        needed: names of tensors that keep this memory; None: all.
    """
    with wrapping.without_pull(), torch.random.fork_rng(devices=[]), torch.no_grad():
        kept = {id(target.tensor) for target in _targets_of(module) if needed is None or target.names[0] in needed}
        torch.manual_seed(seed)
        for _, each in _children_first(module):
            reset = _reset_of(each)
            if reset is None:
                continue
            tensors = [*each.parameters(), *each.buffers()]  # also of children, because a module may change theirs
            core().giveMemory([tensor for tensor in tensors if id(tensor) in kept])
            given = core().giveMemory([tensor for tensor in tensors if id(tensor) not in kept])
            try:
                reset()
            finally:
                core().takeMemory(given)
