"""What surrounds a model's forward while it is captured.

Source: spec executor.md, section 5.
"""

import contextlib
import sys
import threading

import torch
from torch.nn.modules import module as torch_module
from torch.utils import _python_dispatch as python_dispatch

from . import _hooks, wrapping
from ._errors import refused, userError
from ._host_random import refusedDraws, requireNoDraw
from ._indexing import indexingByTensors
from ._item_access import exchanged, replaced
from ._logging import logger
from ._native import core, isCapturing
from ._one_at_a_time import newTurns
from ._overlap import checkedOverlaps
from ._raw_reads import noticedReads, threadsOfForward, typedReads
from ._tensor_copies import copiesOfTensors
from ._tensors_of_numbers import tensorsOfNumbers
from ._widening import widenedOperands
from .losses import LossMarking


class CaptureMode(python_dispatch.TorchDispatchMode):
    """Stands for the native capture wherever Python code asks which mode is active. Never called: the native one is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise refused(AssertionError, "the capture is native")


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


def _withoutDistributionChecks():
    """Checks of distributions read values of tensors."""
    return replaced("_validate_args", False, torch.distributions.Distribution)


def _textWithoutValues(original):
    """print(tensor) shows what is known of it."""

    def text(tensor, *, tensor_contents=None):
        if not isCapturing():
            return original(tensor, tensor_contents=tensor_contents)
        return f"tensor(<unavailable>, size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    return text


def _requireNoFunctions(name):
    raise userError(
        "E0106",
        f"torch's operator {name} takes functions, and cannot be captured",
        expected="operators that take tensors and numbers",
        remedy="poptorch.cond, poptorch.for_loop (inference), or compute both ways and choose with torch.where",
    )


def _withoutFunctionOperands():
    """torch.cond, while_loop and their kin do not reach the dispatcher as operators of tensors do."""

    def cond(original):
        def chosen(pred, *args, **kwargs):
            if isCapturing() and isinstance(pred, torch.Tensor):
                _requireNoFunctions("cond")
            return original(pred, *args, **kwargs)

        return chosen

    def dispatching(original):
        def dispatch(self, key, *args, **kwargs):
            if isCapturing() and key == torch._C.DispatchKey.Python:
                _requireNoFunctions(self)
            return original(self, key, *args, **kwargs)

        return dispatch

    return exchanged((torch, "cond", cond), (torch._ops.HigherOrderOperator, "dispatch", dispatching))


@contextlib.contextmanager
def _allowedReads():
    core().allowReads(True)
    try:
        yield
    finally:
        core().allowReads(False)


def _withoutValueSteering(model):
    """Where torch looks at values only to choose a faster way, the way that is right for all values is taken.

    A causal mask that the model holds is recognised as in eager; one that is computed or given is taken as it is.
    Padding masks never shorten what an encoder computes.
    """

    def detectCausal(original):
        def detect(mask, is_causal=None, size=None):
            if mask is None or is_causal is not None:
                return original(mask, is_causal, size)
            if not core().mayVary(mask):
                return original(mask, is_causal, size)
            if not _isHeld(mask, model):
                return False
            with _allowedReads():
                return original(mask, is_causal, size)

        return detect

    def leftAligned(original):
        def isAligned(tensor, mask):
            if not core().mayVary(mask):
                return original(tensor, mask)
            logger.warning(
                "nn.TransformerEncoder sets padding at the end to zero in eager evaluation: the program leaves the "
                "values of padded positions as they are, as with enable_nested_tensor=False"
            )
            return False

        return isAligned

    def unchecked(original):
        """For the check of gaussian_nll_loss that no variance is negative."""

        def anyOf(*args, **kwargs):
            if sys._getframe(1).f_code is torch.nn.functional.gaussian_nll_loss.__code__:
                return False
            return original(*args, **kwargs)

        return anyOf

    def averaging(original):
        """momentum=None: how much a batch counts is a value of the device."""

        def forward(self, x):
            averages = self.momentum is None and self.training and self.track_running_stats
            if not averages or not isCapturing():
                return original(self, x)
            self._check_input_dim(x)
            self.num_batches_tracked.add_(1)
            with torch.no_grad():
                torch.ops.abele_op.average_statistics(
                    x.detach(), self.running_mean, self.running_var, self.num_batches_tracked
                )
            return torch.nn.functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)

        return forward

    return exchanged(
        (torch.nn.modules.batchnorm._BatchNorm, "forward", averaging),
        (torch.nn.modules.transformer, "_detect_is_causal_mask", detectCausal),
        (torch, "_nested_tensor_from_mask_left_aligned", leftAligned),
        (torch, "any", unchecked),
    )


def _isHeld(tensor, model):
    memory = tensor.untyped_storage()._cdata
    return any(held.untyped_storage()._cdata == memory for held in [*model.buffers(), *model.parameters()])


def _withoutSeeding(original):
    """forward draws from the stream of the device, whatever it seeds."""

    def seedOfTheDevice(seed):
        if not isCapturing():
            return original(seed)
        logger.warning("a seed set inside forward has no effect on the device: use opts.randomSeed(...)")
        return torch.default_generator

    return seedOfTheDevice


_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


def _owned(model):
    """(module, dictionary, name) -> tensor, for every parameter and buffer."""
    found = {}
    for path, module in model.named_modules():
        if not isinstance(module, _NORMS):
            for kind in ("_parameters", "_buffers"):
                for name, tensor in module.__dict__.get(kind, {}).items():  # none: a module of TorchScript
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
            "E0108", f"forward replaced {full}", expected="an update in place", remedy=f"self.{name}.copy_(new_value)"
        )


@contextlib.contextmanager
def withHooks():
    """Around a compilation or the loading of one."""
    _hooks.callPreCompileHooks()
    try:
        yield
    finally:
        _hooks.callPostCompileHooks()


# One capture at a time: what surrounds forward stands in for functions of torch, for all threads. A model whose forward
# compiles another one takes it twice.
_capture_lock = {}  # None: the lock, once somebody has asked for it
_thread = threading.local()  # captures: does this thread capture a program?


def _captureLock():
    return _capture_lock.get(None) or _capture_lock.setdefault(None, newTurns("a compilation"))


@contextlib.contextmanager
def aroundCompile(model):
    """Around the whole compilation: hooks; weights are read as they are on the host. Threads: one after another."""
    with _captureLock(), withHooks():
        before = _owned(model)
        try:
            # The checks of anomaly mode read values, which would become part of the program.
            with wrapping.withoutPull(), torch.autograd.set_detect_anomaly(False):
                yield
        except Exception:
            with contextlib.suppress(Exception):
                _requireNotReassigned(model, before)
            raise


@contextlib.contextmanager
def _onlyCapture():
    """What surrounds forward is there once, also while a function of poptorch.CPU runs on the host."""
    if getattr(_thread, "captures", False):
        raise userError(
            "E0107",
            "a capture was started inside another one",
            remedy="compile the inner model before the outer one, or call it as a plain module",
        )
    with replaced("captures", True, _thread):
        yield


def _isOfTorch(frame):
    while frame is not None and frame.f_code.co_name == "is_compiling":  # torch has others that ask this one
        frame = frame.f_back
    return frame is not None and (frame.f_globals.get("__name__") or "").partition(".")[0] == "torch"


def _asCompiler(original):
    """torch.compiler.is_compiling() is true for all code but torch's own, which chooses its operators by it."""

    def asked():
        captures = getattr(_thread, "captures", False)  # this thread: others run eager code meanwhile
        return original() or (captures and not _isOfTorch(sys._getframe(1)))

    return asked


@contextlib.contextmanager
def aroundProgram(model, options, around, policy):
    """Around forward and backward, which may run parts of forward again (activation checkpointing).

    Args:
        model: the module that is captured.
        options: abele.isCompiling is read of them.
        around: makes a context that surrounds it too.
        policy: of the package.
    Raises:
        poptorch.Error: E0107 where a program is being captured by this thread.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_onlyCapture())
        stack.enter_context(exchanged((torch._tensor_str, "_str", _textWithoutValues)))
        stack.enter_context(noticedReads())
        stack.enter_context(around())
        if options._Popart.options.get("abele.isCompiling"):
            stack.enter_context(exchanged((torch.compiler, "is_compiling", _asCompiler)))
        stack.enter_context(copiesOfTensors())
        stack.enter_context(_withoutDistributionChecks())
        # Two functions, once torch._dynamo is imported.
        stack.enter_context(exchanged(*((home, "manual_seed", _withoutSeeding) for home in (torch, torch.random))))
        stack.enter_context(widenedOperands())
        stack.enter_context(_withoutValueSteering(model))
        stack.enter_context(indexingByTensors(reads=policy.many_programs or options.trust_reads))
        stack.enter_context(tensorsOfNumbers())
        stack.enter_context(refusedDraws())
        stack.enter_context(threadsOfForward())
        yield


def callForward(model, positional, named, *, options, excludes, training, scopes):
    """Runs forward as captured code. Returns what it returned."""
    before = _owned(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(typedReads(excludes))
        stack.enter_context(_withoutFunctionOperands())
        stack.enter_context(torch.set_grad_enabled(training))
        if scopes:
            stack.enter_context(_moduleScopes(model))
        if training:
            stack.enter_context(LossMarking())
        with checkedOverlaps(options) as check:
            result = model(*positional, **named)
            check(result)
    requireNoDraw()
    _requireNotReassigned(model, before)
    return result


def getIpuTensorId(t):
    """Number of the value that a tensor holds in the program being captured.

    Raises:
        poptorch.Error: a host tensor; outside of forward every tensor is one.
    """
    number = core().valueId(t) if isinstance(t, torch.Tensor) else -1
    if number < 0:
        raise userError(
            "E0708",
            "getIpuTensorId of a tensor that is on the host",
            expected="a tensor computed by the forward that is being captured",
        )
    return number
