"""Blocks and scopes: marks of the user in a model. Outside a capture they do nothing.

Source: spec annotations.md, section 1.
"""

import builtins
import functools
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import torch

from ._errors import refused, user_error
from ._logging import logger
from ._native import core, isCapturing

_Layer = TypeVar("_Layer", bound=Callable[..., Any])
_Function = TypeVar("_Function", bound=Callable[..., Any])
_Devices = int | Sequence[int] | None


def _begin(user_id, ipu_id):
    """Makes a block active and returns its id. Requires a capture."""
    user_id = user_id or core().nextAutoBlockId()
    logger.debug("block %s begins, ipu %s", user_id, "by its stage" if ipu_id is None else ipu_id)
    core().beginBlock(str(user_id), _devices(ipu_id))
    return user_id


def _devices(ipu_id):
    """The numbers for the core. Numbers may be texts ("1"), because programs make both ids from one pattern."""
    if ipu_id is None:
        return []
    is_list = isinstance(ipu_id, (list, tuple, range))
    devices = list(ipu_id) if is_list else [ipu_id]
    for device in devices:
        is_number = device.isdecimal() if isinstance(device, str) else hasattr(device, "__index__")
        if not is_number or int(device) >= 1 << 31:
            raise user_error("E0710", f"ipu_id is {ipu_id!r}", expected="a number of 31 bits, or its text")
    if is_list and not devices:
        raise user_error("E0710", "ipu_id is an empty list", expected="the numbers of devices")
    return [int(device) for device in devices]


class Block(torch.nn.Module):
    """Context manager: code inside belongs to the block. Leaving it ends every block, because blocks form no stack.

    Args:
        user_id: name of the block; None numbers it. Re-using a name enters the same block again.
        ipu_id: device, as an index inside the model's device set; 1 or "1". A list: these devices share the work of
            the block (docs/tensor_parallel.md). The list is ours, not PopTorch's.
    """

    def __init__(self, user_id: str | None = None, ipu_id: _Devices = None) -> None:
        super().__init__()
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __enter__(self) -> None:
        if isCapturing():
            _begin(self._user_id, self._ipu_id)

    def __exit__(self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: Any) -> None:
        if isCapturing():
            core().endBlock()

    @staticmethod
    def useAutoId() -> None:
        """Numbers blocks from 0 again. Call it at the start of forward."""
        if isCapturing():
            core().resetAutoBlockId()

    @staticmethod
    def start(user_id: str | None = None, ipu_id: _Devices = None) -> None:
        """Starts a block, which is active until the next one starts."""
        if isCapturing():
            _begin(user_id, ipu_id)


class _BlockHook:
    """The forward-pre-hook that BeginBlock registers. Travels with the module when it is copied or pickled."""

    def __init__(self, user_id, ipu_id):
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, module, inputs):
        if isCapturing():
            self._user_id = _begin(self._user_id, self._ipu_id)  # keeps an automatic number

    def __repr__(self):
        return f"BeginBlock(user_id={self._user_id}, ipu_id={self._ipu_id})"


class LegacyBeginBlockFn(torch.nn.Module):
    """Begins a block, then calls a function. BeginBlock makes it for callables other than modules."""

    def __init__(self, layer_to_call: Callable[..., Any], user_id: str | None = None, ipu_id: _Devices = None) -> None:
        super().__init__()
        self._layer_to_call = layer_to_call
        self._user_id = user_id
        self._ipu_id = ipu_id

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if isCapturing():
            self._user_id = _begin(self._user_id, self._ipu_id)
        return self._layer_to_call(*args, **kwargs)


def BeginBlock(layer_to_call: _Layer, user_id: str | None = None, ipu_id: _Devices = None) -> _Layer:
    """Begins a block when the module is called. Later operations belong to the block until another one begins.

    Returns: the same module; for another callable, a module that calls it.
    Raises:
        poptorch.Error: the module begins a block already, or the argument is not callable.
    """
    if not isinstance(layer_to_call, torch.nn.Module):
        if not callable(layer_to_call):
            raise user_error(
                "E0710", f"BeginBlock of a {type(layer_to_call).__name__}", expected="a torch.nn.Module or a callable"
            )
        return LegacyBeginBlockFn(layer_to_call, user_id, ipu_id)
    for hook in layer_to_call._forward_pre_hooks.values():
        if isinstance(hook, _BlockHook):
            raise user_error(
                "E0710",
                f"{type(layer_to_call).__name__} begins a block already",
                found=repr(hook),
                remedy="poptorch.removeBlocks(module), or annotate another module",
            )
    layer_to_call.register_forward_pre_hook(_BlockHook(user_id, ipu_id))
    return layer_to_call


def removeBlocks(module: torch.nn.Module) -> None:
    """Removes the BeginBlock annotations of the module and of all modules inside."""
    if not isinstance(module, torch.nn.Module):
        raise refused(AssertionError, f"removeBlocks takes a module, got {type(module).__name__}")
    for child in module.modules():
        hooks = child._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if isinstance(hook, _BlockHook)]:
            del hooks[key]


def BlockFunction(user_id: str | None = None, ipu_id: _Devices = None) -> Callable[[_Function], _Function]:
    """Decorator: every call of the function runs inside a Block."""

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            with Block(user_id, ipu_id):
                return function(*args, **kwargs)

        return wrapper

    return decorate


def module_repr(m: torch.nn.Module) -> str:
    """The module's layout as torch prints it, with each module's pre-hooks in front of it."""
    extra = m.extra_repr()
    lines = extra.split("\n") if extra else []
    children = [
        f"({name}): " + module_repr(child).replace("\n", "\n  ")
        for name, child in m._modules.items()
        if child is not None
    ]
    prefix = "".join(f"{hook} " for hook in m._forward_pre_hooks.values())
    name = m._get_name()
    if not children and len(lines) <= 1:
        return f"{prefix}{name}({extra})"
    body = "\n  ".join(lines + children)
    return f"{prefix}{name}(\n  {body}\n)"


def print(m: Any, *args: Any, **kwargs: Any) -> None:
    """Prints a module with its annotations and then as torch does; other objects as usual."""
    if isinstance(m, torch.nn.Module):
        builtins.print(module_repr(m))
    builtins.print(m, *args, **kwargs)


class NameScope:
    """Context manager: names of operations made inside start with `name/`. Scopes nest."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str):
            raise refused(AssertionError, f"NameScope takes a str, got {name!r}")
        self.name = name
        self._entered = []

    def __enter__(self) -> Self:
        self._entered.append(isCapturing())
        if self._entered[-1]:
            core().pushScope(self.name)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: Any) -> None:
        if self._entered.pop() and isCapturing():
            core().popScope()


ATTR_PREFIX = "attr:"
attributes_lists = []
_current_attributes = {}


def accessAttributes(attributes_id_str):
    """The attributes of an id ("attr:3"), or of a JSON object."""
    if not isinstance(attributes_id_str, (str, bytes)):
        raise refused(ValueError, f"an attribute id is a str or bytes, got {type(attributes_id_str).__name__}")
    text = attributes_id_str.decode("ascii") if isinstance(attributes_id_str, bytes) else attributes_id_str
    if text.startswith(ATTR_PREFIX):
        return attributes_lists[int(text.removeprefix(ATTR_PREFIX))]
    if text.startswith("{"):
        import json

        return json.loads(text)
    raise refused(ValueError, f"{text!r} does not start with {ATTR_PREFIX!r}")


class Attribute:
    """Context manager: string keys and values for the operations made inside; a hint. Nested attributes merge."""

    def __init__(self, **attributes: Any) -> None:
        self._attributes = attributes
        self._previous = []

    def __enter__(self) -> None:
        self._previous.append(dict(_current_attributes))
        for key, value in self._attributes.items():
            merged = isinstance(value, dict) and isinstance(_current_attributes.get(key), dict)
            _current_attributes[key] = {**_current_attributes[key], **value} if merged else value

    def __exit__(self, exc_type: type[BaseException] | None, value: BaseException | None, traceback: Any) -> None:
        _current_attributes.clear()
        _current_attributes.update(self._previous.pop())
