"""Finds a program's name for a tensor that is neither a parameter nor a buffer of its model."""

import torch

_DEPTH = 4  # levels of containers and objects below an attribute that are searched


def _inside(value, path, depth, seen):
    """(path, tensor) of the tensors in an attribute."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    if depth == 0 or id(value) in seen or isinstance(value, (str, bytes, type)):
        return
    seen.add(id(value))
    if isinstance(value, torch.nn.Module):
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_parameters())
        yield from ((f"{path}.{name}", tensor) for name, tensor in value.named_buffers())
    if isinstance(value, dict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{i}]", item) for i, item in enumerate(value)]
    else:
        attributes = getattr(value, "__dict__", {})
        items = [(f"{path}.{key}", item) for key, item in attributes.items() if not key.startswith("__")]
    for where, item in items:
        yield from _inside(item, where, depth - 1, seen)


def path_of(model, storage):
    """ "encoder.cache": the attribute of the model or of a module in it that holds a tensor of this memory; or "".

    Args:
        storage: number of torch's storage.
    """
    seen = set()
    for name, module in model.named_modules():
        for key, value in module.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            for path, tensor in _inside(value, f"{name}.{key}" if name else key, _DEPTH, seen):
                if tensor.layout == torch.strided and tensor.untyped_storage()._cdata == storage:
                    return path
    return ""
