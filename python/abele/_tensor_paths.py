"""Finds a program's names for tensors that are neither parameters nor buffers of its model."""

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


def paths_in(model):
    """{number of torch's storage: "encoder.cache"} of tensors in attributes of the model, or of modules in it."""
    seen, found = set(), {}
    for name, module in model.named_modules():
        for key, value in module.__dict__.items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            for path, tensor in _inside(value, f"{name}.{key}" if name else key, _DEPTH, seen):
                if tensor.layout == torch.strided:
                    found.setdefault(tensor.untyped_storage()._cdata, path)
    return found
