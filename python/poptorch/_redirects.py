"""Factory calls and moves between host and device, as forward means them while it is captured.

The device of a captured program is this process, so that tensors stay where they are: what is left of PopTorch's rules
are the warnings, the device name "ipu" (programs choose by tensor.device.type what they may look at), and the refusal
to read a device value on the host. Source: spec executor.md, section 5.
"""

import contextlib
import functools
import os
import sys

import torch

from ._logging import logger
from ._native import core, isCapturing

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
_DEVICE = torch.device("ipu", 0)
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep


def _isDevice(device):
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "ipu"


def _isKeras(frame):
    """Whether code of Keras runs there, which names the device of its backend, "cpu", at every turn."""
    return frame.f_globals.get("__name__", "").startswith("keras.src.")


def _isLibrary(frame):
    """Whether code of torch or of Keras runs there, which has nothing to say about devices."""
    return frame.f_code.co_filename.startswith(_TORCH) or _isKeras(frame)


def _redirected(name, original, warned):
    """The factory, which warns once a capture if it is called without a device, and takes "ipu" for one."""

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
            logger.warning("No device set in torch.%s(): forcing to IPU, the tensor is made on the device", name)
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


def _autocastAtHome(original):
    """torch.autocast's constructor, which takes the device "ipu" for this process."""

    @functools.wraps(original)
    def constructor(self, device_type, *args, **kwargs):
        original(self, "cpu" if device_type == "ipu" else device_type, *args, **kwargs)

    return constructor


def _deviceOf(original):
    """Tensor.device, which is "ipu" of tensors of the program; torch's own functions see where the memory is."""

    def device(self):
        if _isLibrary(sys._getframe(1)) or not core().isCaptured(self):
            # A mode of torch functions would ask again, through this property.
            with torch._C.DisableTorchFunction():
                return original.__get__(self)
        return _DEVICE

    return property(device)


def _movesOf(refuse_reads):
    """Replacements for Tensor.to and Tensor.cpu."""
    to, cpu = torch.Tensor.to, torch.Tensor.cpu

    def moveTo(self, *args, **kwargs):
        device = kwargs.get("device", args[0] if args else None)
        names_host = isinstance(device, str) and torch.device(device).type == "cpu"
        if _isDevice(device) or (names_host and _isKeras(sys._getframe(1))):
            kwargs.pop("device", None)
            rest = args[1:] if args and args[0] is device else args
            return to(self, *rest, **kwargs) if rest or kwargs.keys() - {"non_blocking", "copy"} else self
        # A device object comes from another tensor of the program: y.device. Only a name says that the host is meant.
        if refuse_reads and names_host:
            core().readValue(self, f"to({device!r})")
        return to(self, *args, **kwargs)

    def moveToHost(self, *args, **kwargs):
        if refuse_reads:
            core().readValue(self, "cpu()")
        return cpu(self, *args, **kwargs)

    device, new_tensor = _deviceOf(torch.Tensor.device), _atHome(torch.Tensor.new_tensor)
    return {"to": moveTo, "cpu": moveToHost, "device": device, "new_tensor": new_tensor}


@contextlib.contextmanager
def _copiesOfTensors():
    """copy.copy and copy.deepcopy of a tensor of the program: torch makes them of its storage, past all operators."""
    deepcopy = torch.Tensor.__deepcopy__

    def copyOf(self):
        return self.detach().requires_grad_(self.requires_grad)

    def deepCopyOf(self, memo):
        if id(self) in memo or not self.is_leaf or not core().isCaptured(self):
            return deepcopy(self, memo)
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
        return memo[id(self)]

    torch.Tensor.__copy__, torch.Tensor.__deepcopy__ = copyOf, deepCopyOf
    try:
        yield
    finally:
        torch.Tensor.__deepcopy__ = deepcopy
        del torch.Tensor.__copy__


@contextlib.contextmanager
def _scriptsOf(originals):
    """torch.jit.script reads source code and knows torch's own functions, not what stands for them."""
    script = torch.jit.script

    @functools.wraps(script)
    def scripted(*args, **kwargs):
        redirected = {name: getattr(torch, name) for name in originals}
        for name, original in originals.items():
            setattr(torch, name, original)
        try:
            return script(*args, **kwargs)
        finally:
            for name, replacement in redirected.items():
                setattr(torch, name, replacement)

    torch.jit.script = scripted
    try:
        yield
    finally:
        torch.jit.script = script


@contextlib.contextmanager
def redirectedCalls(refuse_reads):
    """Around forward. refuse_reads: moving a value that differs between calls to the host is an error (E0101)."""
    warned = set()
    originals = {name: getattr(torch, name) for name in _FACTORIES}
    moves = {name: move for name, move in _movesOf(refuse_reads).items() if name not in vars(torch.Tensor)}
    converters = {name: getattr(torch, name) for name in ("as_tensor", "asarray")}
    for name, original in originals.items():
        setattr(torch, name, _redirected(name, original, warned))
    for name, original in converters.items():
        setattr(torch, name, _atHome(original))
    for name, move in moves.items():
        setattr(torch.Tensor, name, move)
    autocast = torch.autocast.__init__
    torch.autocast.__init__ = _autocastAtHome(autocast)
    try:
        with _scriptsOf(originals), _copiesOfTensors():
            yield
    finally:
        for name, original in {**originals, **converters}.items():
            setattr(torch, name, original)
        torch.autocast.__init__ = autocast
        for name in moves:
            delattr(torch.Tensor, name)
