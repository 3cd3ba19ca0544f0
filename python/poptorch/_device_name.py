"""Replaces functions that make tensors, or move them between host and device, while forward is captured.

The device of a captured program is this process, so tensors are not moved, and a model written for the CPU sees the
CPU. Three of PopTorch's rules remain: the warnings, the device name "ipu" (programs choose by tensor.device.type what
they may read), and the refusal to read a device value on the host.
Source: spec executor.md, section 5.
"""

import contextlib
import functools
import os
import sys

import torch
from abele import wrapping
from abele._function_rules import getter_of
from abele._item_access import exchanged
from abele._logging import logger
from abele._native import core, isCapturing

_FACTORIES = (
    "arange",
    "empty",
    "full",
    "full_like",
    "linspace",
    "logspace",
    "normal",
    "ones",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
)
_OF_DEVICE_TYPES = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
_DEVICE = torch.device("ipu", 0)
_WRAPPING = wrapping._WrappedTensor.__getattribute__.__code__.co_filename
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def _is_device(device):
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "ipu"


def _is_keras(frame):
    """Whether the frame is Keras' code, which passes its backend's device, "cpu", in every call."""
    return frame.f_globals.get("__name__", "").startswith("keras.src.")


def _is_library(frame):
    """Whether the frame is code of torch or Keras, whose devices the user did not choose."""
    while frame.f_code.co_filename == _WRAPPING:  # a wrapped parameter hands the question on
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TORCH) or _is_keras(frame)


def _warn_of_factory(name):
    logger.warning("torch.%s() names no device: the captured program makes the tensor on its own device", name)


def _redirected(rules, name, warned, original):
    """A factory that warns once per capture if it is called without a device, and treats "ipu" as this process."""

    def factory(*args, **kwargs):
        device = kwargs.get("device")
        if _is_device(device):
            kwargs["device"] = None
        elif (
            device is None
            and name not in warned
            and not (name == "normal" and any(isinstance(value, torch.Tensor) for value in args))
            and not _is_library(rules.caller())
        ):
            warned.add(name)
            _warn_of_factory(name)
        return original(*args, **kwargs)

    return factory


def _range(original):
    """torch.range, for which torch calls no mode."""

    @functools.wraps(original)
    def factory(*args, **kwargs):
        if isCapturing() and _is_device(kwargs.get("device")):
            kwargs["device"] = None
        elif isCapturing() and kwargs.get("device") is None and not _is_library(sys._getframe(1)):
            _warn_of_factory("range")
        return original(*args, **kwargs)

    return factory


def _at_home(original):
    """The function, which ignores the device "ipu"."""

    def function(*args, **kwargs):
        if _is_device(kwargs.get("device")):
            del kwargs["device"]
        return original(*args, **kwargs)

    return function


def _type_at_home(original):
    """A function with a device type as an argument, which treats "ipu" as this process."""

    @functools.wraps(original)
    def function(*args, **kwargs):
        if isCapturing():
            args = ["cpu" if isinstance(value, str) and value == "ipu" else value for value in args]
            if kwargs.get("device_type") == "ipu":
                kwargs["device_type"] = "cpu"
        return original(*args, **kwargs)

    return function


def _moving(rules, to):
    def move_to(tensor, *args, **kwargs):
        device = kwargs.get("device", args[0] if args else None)
        names_host = isinstance(device, str) and torch.device(device).type == "cpu"
        if _is_device(device) or (names_host and _is_keras(rules.caller())):
            kwargs.pop("device", None)
            rest = args[1:] if args and args[0] is device else args
            return to(tensor, *rest, **kwargs) if rest or kwargs.keys() - {"non_blocking", "copy"} else tensor
        # A device object comes from another tensor of the program (y.device). Only a name means the host.
        if names_host:
            core().readValue(tensor, f"to({device!r})")
        return to(tensor, *args, **kwargs)

    return move_to


def _moving_to_host(cpu):
    def move_to_host(tensor, *args, **kwargs):
        core().readValue(tensor, "cpu()")
        return cpu(tensor, *args, **kwargs)

    return move_to_host


@contextlib.contextmanager
def redirected_calls(rules):
    """A context around forward and backward."""
    warned = set()
    for name in _FACTORIES:
        rules.add(getattr(torch, name), functools.partial(_redirected, rules, name, warned))
    for function in (torch.as_tensor, torch.asarray, torch.Tensor.new_tensor):
        rules.add(function, _at_home)
    rules.add(torch.Tensor.to, functools.partial(_moving, rules))
    rules.add(torch.Tensor.cpu, _moving_to_host)

    def is_programs(tensor):  # torch's own functions see where the memory is
        return core().isCaptured(tensor) and not _is_library(rules.caller())

    rules.add(getter_of("device"), lambda own: lambda tensor: _DEVICE if is_programs(tensor) else own(tensor))
    rules.add(getter_of("is_cpu"), lambda own: lambda tensor: own(tensor) and not is_programs(tensor))
    rules.add(getter_of("is_ipu"), lambda own: lambda tensor: own(tensor) or is_programs(tensor))
    with contextlib.ExitStack() as stack:
        for name in _OF_DEVICE_TYPES:
            stack.enter_context(exchanged(torch, name, _type_at_home))
        stack.enter_context(exchanged(torch, "range", _range))
        stack.enter_context(exchanged(torch.autocast, "__init__", _type_at_home))
        yield
