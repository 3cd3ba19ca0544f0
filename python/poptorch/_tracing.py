"""What surrounds a model's forward while it is captured.

Source: spec executor.md, section 5.
"""

import contextlib

import torch
from torch.nn.modules import module as torch_module
from torch.utils import _python_dispatch as python_dispatch

from . import _hooks, wrapping
from ._errors import userError
from ._native import core
from .losses import LossMarking


class CaptureMode(python_dispatch.TorchDispatchMode):
    """Stands for the native capture wherever Python code asks which mode is active. Never called: the native one is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError("the capture is native")


@contextlib.contextmanager
def _moduleScopes(model):
    """Operations made inside a submodule carry its name."""
    names = {id(child): name.rpartition(".")[2] for name, child in model.named_modules() if name}

    def enter(module, inputs):
        core().pushScope(names.get(id(module), ""))

    def leave(module, inputs, result):
        core().popScope()

    handles = [
        torch_module.register_module_forward_pre_hook(enter),
        torch_module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _withoutDistributionChecks():
    # Their checks read values of tensors.
    previous = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(previous)


def _textWithoutValues(tensor, *, tensor_contents=None):
    return f"tensor(<unavailable>, size={tuple(tensor.shape)}, dtype={tensor.dtype})"


@contextlib.contextmanager
def _printableTensors():
    """print(tensor) shows what is known of it."""
    original = torch._tensor_str._str
    torch._tensor_str._str = _textWithoutValues
    try:
        yield
    finally:
        torch._tensor_str._str = original


def _readingMethod(name):
    original = getattr(torch.Tensor, name)

    def method(self, *args, **kwargs):
        core().readValue(self, f"{name}()")
        return original(self, *args, **kwargs)

    return method


@contextlib.contextmanager
def _noticedReads():
    """numpy() and tolist() read memory past all operators; a value that may differ between calls is refused."""
    names = [name for name in ("numpy", "tolist") if name not in vars(torch.Tensor)]
    for name in names:
        setattr(torch.Tensor, name, _readingMethod(name))
    try:
        yield
    finally:
        for name in names:
            delattr(torch.Tensor, name)


_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def _owned(model):
    """(module, dictionary, name) -> tensor, for every parameter and buffer."""
    found = {}
    for path, module in model.named_modules():
        if not isinstance(module, _NORMS):
            for kind in ("_parameters", "_buffers"):
                for name, tensor in module.__dict__[kind].items():
                    found[path, kind, name] = tensor
    return found


def _requireNotReassigned(model, before):
    """Puts back what forward reassigned and raises E0108."""
    after = _owned(model)
    modules = dict(model.named_modules())
    changed = [key for key, tensor in before.items() if after.get(key) is not tensor]
    for path, kind, name in changed:
        modules[path].__dict__[kind][name] = before[path, kind, name]
    if changed:
        path, kind, name = changed[0]
        full = f"{path}.{name}" if path else name
        raise userError(
            "E0108",
            "reassigned-parameter",
            f"forward replaced {full}",
            expected="an update in place",
            remedy=f"self.{name}.copy_(new_value)",
        )


@contextlib.contextmanager
def aroundCompile(model):
    """Around the whole compilation: hooks; weights are read as they are on the host."""
    _hooks.callPreCompileHooks()
    before = _owned(model)
    try:
        with wrapping.withoutPull():
            yield
    except Exception:
        with contextlib.suppress(Exception):
            _requireNotReassigned(model, before)
        raise
    finally:
        _hooks.callPostCompileHooks()


def callForward(model, positional, named, *, training, scopes):
    """Runs forward as captured code. Returns what it returned."""
    before = _owned(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_printableTensors())
        stack.enter_context(_noticedReads())
        stack.enter_context(_withoutDistributionChecks())
        stack.enter_context(torch.set_grad_enabled(training))
        if scopes:
            stack.enter_context(_moduleScopes(model))
        if training:
            stack.enter_context(LossMarking())
        result = model(*positional, **named)
    _requireNotReassigned(model, before)
    return result
