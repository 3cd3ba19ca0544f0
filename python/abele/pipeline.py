"""Places the modules of a model on devices by name, with the interface of vision_architectures' pipeline utilities.

    from abele import pipeline
    pipeline.parallelize_pipeline(model, {"": "ipu:0", "encoder": "ipu:0", "decoder": "ipu:1"})

Called directly, a placed model moves its tensors from device to device, as the original does. Wrapped by trainingModel
or inferenceModel, each module begins a block on its device, and the model runs as a pipeline: the number of a device
("ipu:1", "cuda:1", "cpu:1") is the number of Abele's device. A device that torch cannot reach on this machine stands
for Abele's device of that number, and its tensors do not move.
"""

import copy
import inspect
import types
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch

from ._errors import refused
from ._logging import logger
from ._native import isCapturing
from ._native import start as _start
from .annotations import Block

__all__ = [
    "get_device",
    "move_to_device",
    "parallelize_module",
    "parallelize_pipeline",
    "unparallelize_module",
    "unparallelize_pipeline",
]

_Device: TypeAlias = torch.device | str | int
_Module = TypeVar("_Module", bound=torch.nn.Module)
_Data = TypeVar("_Data")

_FORWARD = "forward_with_pipeline_parallelization"
_ORIGINAL = "_forward_without_pipeline_parallelization"
_start()
_reachable = {"cpu": True, "meta": True, "ipu": False}  # device as text -> whether tensors can be there


def get_device(device: _Device) -> torch.device:
    """A torch.device from a torch.device, a text ("cuda:1") or a number. Raises the errors of torch.device."""
    return torch.device(device)


def move_to_device(data: _Data, device: _Device) -> _Data:
    """Moves tensors, and those in lists, tuples, sets and dicts, to a device. Containers keep their types.

    Args:
        data: other objects are returned unchanged.
        device: as for get_device.
    Returns: the moved data. Tensors that are on the device already are the same objects.
    """
    device = get_device(device)
    return _moved(data, device) if _is_reachable(device) else data


def _moved(data: Any, device: torch.device) -> Any:
    if isinstance(data, torch.Tensor):
        return data.to(device)
    if isinstance(data, dict):
        return _like(data, {key: _moved(value, device) for key, value in data.items()})
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_moved(item, device) for item in data))
    if isinstance(data, (list, tuple, set, frozenset)):
        return _like(data, (_moved(item, device) for item in data))
    return data


def _like(container, items):
    """The items in a container of the same type. A defaultdict has a first argument of its own."""
    factory = getattr(container, "default_factory", None)
    return type(container)(items) if factory is None else type(container)(factory, items)


def _is_reachable(device):
    kind = device.type if device.type in _reachable else str(device)
    if kind not in _reachable:
        try:
            torch.empty(0, device=device)
            _reachable[kind] = True
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            _reachable[kind] = False
            reason = str(error).partition("\n")[0]
            logger.warning(
                "%s stands for device %d of Abele: torch cannot use it here: %s", kind, _number(device), reason
            )
    return _reachable[kind]


def _number(device):
    return device.index or 0


class _Placement:
    """The device that a module computes on, and the device of its outputs (None: they stay)."""

    def __init__(self, module, processing_device, output_device):
        self.processing_device = get_device(processing_device)
        self.output_device = None if output_device is None else get_device(output_device)
        self.forward = module.forward
        self.extra_repr = module.extra_repr
        self.overridden = [name for name in ("forward", "extra_repr") if name in module.__dict__]

    @property
    def forward_with_pipeline_parallelization(self):
        """The module's new forward, with the signature of its own."""
        plain = forward_with_pipeline_parallelization
        function = types.FunctionType(plain.__code__, plain.__globals__, plain.__name__)
        own = inspect.signature(self.forward)
        first = inspect.Parameter("placement", inspect.Parameter.POSITIONAL_ONLY)
        function.__signature__ = own.replace(parameters=[first, *own.parameters.values()])
        return types.MethodType(function, self)  # a method, so that copies of the module get their own placement

    def place_copy(self, module):
        """Makes a shallow copy of the module run this forward with the copy's own attributes."""
        placement = copy.copy(self)
        placement.forward = (
            types.MethodType(self.forward.__func__, module) if _is_method(self.forward) else self.forward
        )
        _install(module, placement)

    def extra_repr_with_devices(self):
        devices = f"processing_device={self.processing_device}, output_device={self.output_device}"
        own = self.extra_repr()
        return f"{own}, {devices}" if own else devices


def forward_with_pipeline_parallelization(placement: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Runs a module's own forward on its device."""
    here, after = placement.processing_device, placement.output_device
    if isCapturing():
        Block.start(ipu_id=_number(here))
        result = placement.forward(*args, **kwargs)
        if after is not None and after != here:
            Block.start(ipu_id=_number(after))
        return result
    args, kwargs = move_to_device(args, here), move_to_device(kwargs, here)
    result = placement.forward(*args, **kwargs)
    return result if after is None else move_to_device(result, after)


def parallelize_module(module: _Module, processing_device: _Device, output_device: _Device | None = None) -> _Module:
    """Moves a module to a device and lets it compute there. Its inputs move there, and its outputs to output_device.

    Args:
        module: changed in place: its forward and extra_repr.
        processing_device: as for get_device.
        output_device: None: the outputs stay on processing_device.
    Returns: the module.
    Raises:
        RuntimeError: the module is parallelized already.
    """
    _require_plain(module, type(module).__name__)
    placement = _Placement(module, processing_device, output_device)
    _move_module(module, placement.processing_device)
    _install(module, placement)
    return module


def _install(module, placement):
    setattr(module, _ORIGINAL, placement.forward)
    setattr(module, _FORWARD, placement.forward_with_pipeline_parallelization)
    module.forward = getattr(module, _FORWARD)
    module.extra_repr = placement.extra_repr_with_devices


def _is_method(forward):
    return isinstance(forward, types.MethodType) and isinstance(forward.__self__, torch.nn.Module)


def _require_plain(module, name):
    if hasattr(module, _FORWARD):
        raise refused(RuntimeError, f"{name} is parallelized already: unparallelize it first")


def _move_module(module, device):
    if _is_reachable(device):
        module.to(device)


def unparallelize_module(module: _Module, common_device: _Device | None = None) -> _Module:
    """Undoes parallelize_module. Does nothing to a module that is not parallelized.

    Args:
        common_device: device to move the module to; None: it stays.
    Returns: the module.
    """
    if hasattr(module, _FORWARD):
        placement = module.forward.__self__
        for name in ("forward", "extra_repr"):
            if name in placement.overridden:
                setattr(module, name, getattr(placement, name))
            else:
                delattr(module, name)
        delattr(module, _FORWARD)
        delattr(module, _ORIGINAL)
    if common_device is not None:
        _move_module(module, get_device(common_device))
    return module


def parallelize_pipeline(model: _Module, module_to_device: Mapping[str, _Device | Sequence[_Device | None]]) -> _Module:
    """Places modules of a model on devices. A module without a name in the map is on the device of its parent.

    Name the model itself ("") too, because its outermost computations need a device.

    Args:
        model: none of its modules may be parallelized yet. Changed in place.
        module_to_device: module names ("encoder.layers.0"; "" is the model) -> a device, or [device of the
            computation, device of the outputs]. Without the second one the outputs go to the device of the nearest
            named parent; without such a parent they stay.
    Returns: the model.
    Raises, without any change:
        ValueError: an unknown name, or more than two devices.
        RuntimeError: a module is parallelized already, or named twice.
    """
    devices = {name: _devices_of(name, value) for name, value in module_to_device.items()}
    modules = {name: _submodule(model, name) for name in devices}
    seen = set()
    for name, module in modules.items():
        _require_plain(module, repr(name))
        if id(module) in seen:
            raise refused(RuntimeError, f"{name!r} has a second name that is placed as well")
        seen.add(id(module))
    for name in sorted(devices, key=lambda name: len(_path(name))):  # outer modules first: they move the inner ones too
        processing, output = devices[name]
        parallelize_module(modules[name], processing, _output_above(name, devices) if output is None else output)
    return model


def _path(name):
    return name.split(".") if name else []


def _devices_of(name, value):
    values = list(value) if isinstance(value, (list, tuple)) else [value, None]
    if len(values) != 2:
        raise refused(
            ValueError, f"{name!r} has {len(values)} devices; a module computes on one, and its outputs go to one"
        )
    return [None if device is None else get_device(device) for device in values]


def _submodule(model, name):
    module = model
    for part in _path(name):
        if part not in module._modules:
            raise refused(ValueError, f"{name!r}: {type(module).__name__} has no module {part!r}")
        module = module._modules[part]
    return module


def _output_above(name, devices):
    """The device on which the nearest named parent computes, or None."""
    path = _path(name)
    for length in range(len(path) - 1, -1, -1):
        above = ".".join(path[:length])
        if above in devices:
            return devices[above][0]
    return None


def unparallelize_pipeline(model: _Module, common_device: _Device | None = None) -> _Module:
    """Undoes parallelize_pipeline, and parallelize_module of every module inside.

    Args:
        common_device: device to move the model to; None: it stays.
    Returns: the model.
    """
    for module in model.modules():
        unparallelize_module(module)
    return unparallelize_module(model, common_device)  # which moves it
