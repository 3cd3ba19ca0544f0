"""Factory calls and moves between host and device, as forward means them while it is captured.

The device of a captured program is this process, so that tensors stay where they are, and a model written for the CPU
sees the CPU. What is left of PopTorch's rules are the warnings, the device name "ipu" (programs choose by
tensor.device.type what they may look at), and the refusal to read a device value on the host.
Source: spec executor.md, section 5.
"""

import functools
import os
import sys

import torch
from abele import wrapping
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
    "range",
    "tensor",
    "zeros",
    "zeros_like",
)
_OF_DEVICE_TYPES = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
_DEVICE = torch.device("ipu", 0)
_WRAPPING = wrapping._WrappedTensor.__getattribute__.__code__.co_filename
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def _isDevice(device):
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "ipu"


def _isKeras(frame):
    """Whether code of Keras runs there, which names the device of its backend, "cpu", at every turn."""
    return frame.f_globals.get("__name__", "").startswith("keras.src.")


def _isLibrary(frame):
    """Whether code of torch or of Keras runs there, which has nothing to say about devices."""
    while frame.f_code.co_filename == _WRAPPING:  # a wrapped parameter hands the question on
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(_TORCH) or _isKeras(frame)


def _redirected(name, warned, original):
    """The factory, which warns once a capture if it is called without a device, and takes "ipu" for this process."""

    @functools.wraps(original)
    def factory(*args, **kwargs):
        device = kwargs.get("device")
        if _isDevice(device):
            kwargs["device"] = None
        elif (
            device is None
            and name not in warned
            and isCapturing()
            and not (name == "normal" and any(isinstance(value, torch.Tensor) for value in args))
            and not _isLibrary(sys._getframe(1))
        ):
            warned.add(name)
            logger.warning("torch.%s() names no device: the captured program makes the tensor on its own device", name)
        return original(*args, **kwargs)

    return factory


def _atHome(original):
    """The function, which takes the device "ipu" for none."""

    @functools.wraps(original)
    def function(*args, **kwargs):
        if _isDevice(kwargs.get("device")):
            del kwargs["device"]
        return original(*args, **kwargs)

    return function


def _typeAtHome(original):
    """A function of a device's type, which takes "ipu" for this process."""

    @functools.wraps(original)
    def function(*args, **kwargs):
        args = ["cpu" if isinstance(value, str) and value == "ipu" else value for value in args]
        if kwargs.get("device_type") == "ipu":
            kwargs["device_type"] = "cpu"
        return original(*args, **kwargs)

    return function


def _deviceOf(original):
    """Tensor.device, which is "ipu" of tensors of the program; torch's own functions see where the memory is."""

    def device(self):
        if _isLibrary(sys._getframe(1)) or not core().isCaptured(self):
            # A mode of torch functions would ask again, through this property.
            with torch._C.DisableTorchFunction():
                return original.__get__(self)
        return _DEVICE

    return property(device)


def _isOnHost(original):
    """Tensor.is_cpu, which agrees with Tensor.device."""

    def isOnHost(self):
        with torch._C.DisableTorchFunction():
            is_cpu = original.__get__(self)
        return is_cpu and (_isLibrary(sys._getframe(1)) or not core().isCaptured(self))

    return property(isOnHost)


def _isOnDevice():
    """Tensor.is_ipu, likewise."""
    return property(lambda self: not _isLibrary(sys._getframe(1)) and core().isCaptured(self))


def _members():
    """Replacements for members of Tensor that tell where it is or move it."""
    to, cpu = torch.Tensor.to, torch.Tensor.cpu

    def moveTo(self, *args, **kwargs):
        device = kwargs.get("device", args[0] if args else None)
        names_host = isinstance(device, str) and torch.device(device).type == "cpu"
        if _isDevice(device) or (names_host and _isKeras(sys._getframe(1))):
            kwargs.pop("device", None)
            rest = args[1:] if args and args[0] is device else args
            return to(self, *rest, **kwargs) if rest or kwargs.keys() - {"non_blocking", "copy"} else self
        # A device object comes from another tensor of the program: y.device. Only a name says that the host is meant.
        if names_host:
            core().readValue(self, f"to({device!r})")
        return to(self, *args, **kwargs)

    def moveToHost(self, *args, **kwargs):
        core().readValue(self, "cpu()")
        return cpu(self, *args, **kwargs)

    return {
        "to": moveTo,
        "cpu": moveToHost,
        "device": _deviceOf(torch.Tensor.device),
        "is_cpu": _isOnHost(torch.Tensor.is_cpu),
        "is_ipu": _isOnDevice(),
        "new_tensor": _atHome(torch.Tensor.new_tensor),
    }


def _scriptsOf(originals):
    """torch.jit.script reads source code and knows torch's own functions, not what stands for them."""

    def scripting(script):
        @functools.wraps(script)
        def scripted(*args, **kwargs):
            with exchanged(*((torch, name, lambda _, own=own: own) for name, own in originals.items())):
                return script(*args, **kwargs)

        return scripted

    return scripting


def redirectedCalls():
    """Around forward and backward."""
    warned = set()
    places = [(torch, name, functools.partial(_redirected, name, warned)) for name in _FACTORIES]
    places += [(torch, name, _atHome) for name in ("as_tensor", "asarray")]
    places += [(torch, name, _typeAtHome) for name in _OF_DEVICE_TYPES]
    places += [(torch.autocast, "__init__", _typeAtHome)]
    places += [(torch.jit, "script", _scriptsOf({name: getattr(torch, name) for name in _FACTORIES}))]
    members = {name: member for name, member in _members().items() if name not in vars(torch.Tensor)}
    places += [(torch.Tensor, name, lambda _, member=member: member) for name, member in members.items()]
    return exchanged(*places)
