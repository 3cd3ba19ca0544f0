"""Contexts around a model's forward while it is captured.

Source: spec executor.md, section 5.
"""

import contextlib
import sys
import threading

import torch
from torch import overrides
from torch.utils import _python_dispatch as python_dispatch

from . import wrapping
from ._errors import refused, user_error
from ._function_rules import FunctionRules
from ._hooks import called_hooks
from ._indexing import add_indexing
from ._item_access import exchanged, replaced
from ._logging import logger
from ._native import core, isCapturing
from ._overlap import checked_overlaps
from ._random_states import noted_draws
from ._raw_reads import add_reads, typed_reads
from ._replaced_buffers import BufferWatch
from ._tensors_of_numbers import add_tensors_of_numbers
from ._widening import add_widening
from .losses import add_losses


class CaptureMode(python_dispatch.TorchDispatchMode):
    """Represents the native capture for Python code that looks up the active mode. It is never called, because the
    native mode is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise refused(AssertionError, "the capture is native")


@contextlib.contextmanager
def _module_scopes(model):
    """A context in which operations inside a submodule carry its name."""
    names = {id(child): name.rpartition(".")[2] for name, child in model.named_modules() if name}
    core().setModules(names, torch.nn.Module._wrapped_call_impl.__code__, call_forward.__code__)
    try:
        yield
    finally:
        core().unsetModules()


def _without_values(original):
    """A context in which print(tensor) shows size and type of a tensor without contents."""

    def text(tensor, *, tensor_contents=None):
        return f"tensor(<unavailable>, size={tuple(tensor.shape)}, dtype={tensor.dtype})"

    return text


_AS_OPERATORS = ("flex_attention",)  # in eager, torch calls their functions with operators of tensors


def _call_functions(operator, *args, **kwargs):
    """Handles torch.cond, while_loop and similar operators, which do not reach the dispatcher like other operators."""
    if operator.name() in _AS_OPERATORS:
        return operator.dispatch(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
    raise user_error(
        "E0106",
        f"torch's operator {operator} takes functions, and cannot be captured",
        expected="operators that take tensors and numbers",
        remedy="poptorch.cond, poptorch.for_loop (inference), or compute both ways and choose with torch.where",
    )


class _OrCaptures:
    """A flag of torch that is also set on a thread that captures."""

    def __init__(self, original):
        self._original = original

    def __bool__(self):
        return bool(self._original) or isCapturing()


@contextlib.contextmanager
def _allowed_reads():
    core().allowReads(True)
    try:
        yield
    finally:
        core().allowReads(False)


def _add_value_steering(rules, model):
    """Rules for functions in which torch reads values only to choose a faster way: they take the way that is right for
    all values.

    A causal mask that the model holds is recognised as in eager; a computed mask or an argument is not. Padding masks
    never shorten what an encoder computes. Checks of values of arguments that may vary are left out.
    """

    def deciding(original):
        """bool(tensor)"""

        def decides(tensor):
            frame = rules.caller()
            if frame.f_code is not torch.nn.modules.transformer._detect_is_causal_mask.__code__:
                return original(tensor)
            mask = frame.f_locals["mask"]
            if not core().mayVary(mask):
                return original(tensor)
            if not _is_held(mask, model):
                return False
            with _allowed_reads():
                return original(tensor)

        return decides

    def left_aligned(original):
        def is_aligned(tensor, mask):
            if not core().mayVary(mask):
                return original(tensor, mask)
            logger.warning(
                "nn.TransformerEncoder sets padding at the end to zero in eager evaluation: the program leaves the "
                "values of padded positions as they are, as with enable_nested_tensor=False"
            )
            return False

        return is_aligned

    def checking_variances(original):
        def loss(*args, **kwargs):
            with _allowed_reads():
                return original(*args, **kwargs)

        return loss

    def checking_distributions(original):
        def are_all_true(tensor):
            is_check = rules.caller().f_globals.get("__name__", "").startswith("torch.distributions.")
            return torch.tensor(True) if is_check and core().mayVary(tensor) else original(tensor)

        return are_all_true

    rules.add(torch.Tensor.__bool__, deciding)
    rules.add(torch._nested_tensor_from_mask_left_aligned, left_aligned)
    rules.add(torch.nn.functional.gaussian_nll_loss, checking_variances)
    rules.add(torch._is_all_true, checking_distributions)


def _is_held(tensor, model):
    memory = tensor.untyped_storage()._cdata
    return any(held.untyped_storage()._cdata == memory for held in [*model.buffers(), *model.parameters()])


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


def _put_back():
    """Gives the module the buffers that it had before forward, and raises E0108 if backward replaced them again."""
    watch, _thread.watch = getattr(_thread, "watch", None), None
    again = [] if watch is None else watch.put_back()
    if again:
        raise user_error(
            "E0108",
            f"forward replaced {again[0]}, and again when backward ran it once more",
            expected="an update in place",
            remedy=f"self.{again[0]}.copy_(new_value)",
        )


def _require_not_reassigned(model, before):
    """Restores parameters and buffers that forward reassigned, and raises E0108."""
    _put_back()
    after = _owned(model)
    changed = [key for key, tensor in before.items() if after.get(key) is not tensor]
    modules = dict(model.named_modules()) if changed else {}
    for path, kind, name in changed:
        modules[path].__dict__[kind][name] = before[path, kind, name]
    if changed:
        path, kind, name = changed[0]
        full = f"{path}.{name}" if path else name
        raise user_error(
            "E0108", f"forward replaced {full}", expected="an update in place", remedy=f"self.{name}.copy_(new_value)"
        )


# captures: options of the program that this thread captures; watch: a BufferWatch while backward is captured.
_thread = threading.local()


@contextlib.contextmanager
def around_compile(model):
    """A context around the whole compilation: runs hooks, and reads weights as they are on the host.

    Yields: a function that restores tensors that were reassigned meanwhile, and raises E0108.
    """
    with called_hooks(), contextlib.ExitStack() as stack:
        stack.callback(_put_back)
        before = _owned(model)
        try:
            # The checks of anomaly mode read values, which would become part of the program.
            with wrapping.without_pull(), torch.autograd.set_detect_anomaly(False):
                yield lambda: _require_not_reassigned(model, before)
        except Exception:
            with contextlib.suppress(Exception):
                _require_not_reassigned(model, before)
            raise


def captured_options():
    """Options of the program that this thread captures. None: outside of a capture."""
    return getattr(_thread, "captures", None)


def _is_of_torch(frame):
    while frame is not None and frame.f_code.co_name == "is_compiling":  # torch has others that ask this one
        frame = frame.f_back
    return frame is not None and (frame.f_globals.get("__name__") or "").partition(".")[0] == "torch"


def _as_compiler(original):
    """Makes torch.compiler.is_compiling() true for all code except torch's own, which would choose other operators."""

    def asked():
        captures = captured_options() is not None  # this thread: others run eager code meanwhile
        return original() or (captures and not _is_of_torch(sys._getframe(1)))

    return asked


_FAST_IN_INFERENCE = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer, torch.nn.TransformerEncoder)


def _as_without_rules(original):
    """Replaces torch.overrides.has_torch_function(), because torch's layers do not use their faster code if a mode is
    active or a tensor has its own class, as weights of a model in training have."""

    def asked(args):
        # Forward-mode derivatives call this while torch has disabled all modes.
        if not isCapturing() or torch._C._len_torch_function_stack() == 0:
            return original(args)
        with overrides._pop_mode_temporarily():
            return original([each for each in args if not wrapping.is_wrapped(each)])

    return asked


def _rules_for(model, options, policy, training):
    """The rules for functions of torch while the model is captured."""
    rules = FunctionRules(_call_functions)
    add_reads(rules)
    add_widening(rules)
    add_indexing(rules, reads=policy.many_programs or options.trust_reads)
    add_tensors_of_numbers(rules)
    if training:
        add_losses(rules)
    _add_value_steering(rules, model)
    rules.add(torch.Tensor.__repr__, _without_values)
    return rules


@contextlib.contextmanager
def around_program(model, options, around, policy, *, training):
    """A context around forward and backward, which may run parts of forward again (activation checkpointing).

    Args:
        model: the module that is captured.
        options: of the program; capture_as_compiling is used.
        around: makes a further context from the rules for functions of torch, and may add rules.
        policy: of the package.
        training: losses are marked.
    Raises:
        poptorch.Error: E0107 if this thread is capturing a program already.
    """
    if captured_options() is not None:
        raise user_error(
            "E0107",
            "a capture was started inside another one",
            remedy="compile the inner model before the outer one, or call it as a plain module",
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced("captures", options, _thread))
        rules = _rules_for(model, options, policy, training)
        stack.callback(rules.clear)
        stack.enter_context(around(rules))
        if options.exists("capture_as_compiling") and options.capture_as_compiling:
            stack.enter_context(exchanged(torch.compiler, "is_compiling", _as_compiler))
        if not training and any(isinstance(module, _FAST_IN_INFERENCE) for module in model.modules()):
            stack.enter_context(exchanged(overrides, "has_torch_function", _as_without_rules))
        if flex := sys.modules.get("torch.nn.attention.flex_attention"):  # it compiles what it calls, but for debugging
            stack.enter_context(exchanged(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", _OrCaptures))
        stack.enter_context(rules)
        stack.enter_context(noted_draws())
        yield


def watch_buffers(model, policy):
    """A BufferWatch for the next forward. The module has the buffers again that it had before the last one."""
    _put_back()
    modules = model.named_modules() if policy.many_programs else ()
    return BufferWatch({path: module for path, module in modules if not isinstance(module, _NORMS)})


def keep_buffers(watch):
    """The module has the buffers that forward has replaced until the next forward, or until around_compile() ends."""
    watch.put_new()
    _thread.watch = watch


def take_buffers():
    """Copies the buffers that the last forward has put into the module into those from before, which it then has."""
    watch = getattr(_thread, "watch", None)
    news = [] if watch is None else watch.news()
    _put_back()
    for before, value in news:
        with torch.no_grad():
            before.copy_(value)


def call_forward(model, positional, named, *, policy, options, excludes, training, reshapes=False):
    """Runs forward as captured code.

    Args:
        reshapes: whether forward may replace buffers by tensors of other types.
    Returns: its result, a _Replaced for each buffer that it replaced, and the tensors of those with another type.
    """
    watch = watch_buffers(model, policy)
    before = _owned(model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(watch)
        stack.enter_context(typed_reads(excludes))
        stack.enter_context(torch.set_grad_enabled(training))
        if options.module_namescope_enabled:
            stack.enter_context(_module_scopes(model))
        with checked_overlaps(options) as check:
            result = model(*positional, **named)
            check(result)
    _require_not_reassigned(model, before)
    trained = (parameter for parameter in model.parameters() if training and parameter.requires_grad)
    recorded = watch.record(options, trained, reshapes=reshapes)
    if training:
        keep_buffers(watch)
    return result, *recorded


def getIpuTensorId(t):
    """Number of the value that a tensor holds in the program being captured.

    Raises:
        poptorch.Error: a host tensor; outside of forward every tensor is one.
    """
    number = core().valueId(t) if isinstance(t, torch.Tensor) else -1
    if number < 0:
        raise user_error(
            "E0708",
            "getIpuTensorId of a tensor that is on the host",
            expected="a tensor computed by the forward that is being captured",
        )
    return number
