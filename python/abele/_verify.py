"""Proves that a compiled model gives the bits of eager PyTorch."""

import collections
import contextlib
import copy
import dataclasses
from typing import Any

import torch

from . import _objects, optim, structures, wrapping
from ._errors import user_error
from ._models import inferenceModel, trainingModel
from ._module_source import model_tensors
from ._native import PACKAGE_FOLDERS, core
from ._tracing import (
    CaptureMode,
    around_compile,
    around_program,
    call_forward,
    keep_buffers,
    take_buffers,
    watch_buffers,
)
from .executor import Executor
from .options import Options

__all__ = ["Difference", "Verification", "verify"]


@dataclasses.dataclass(frozen=True)
class Difference:
    """The first value that differs between eager and compiled, in the order in which eager computes.

    Attributes:
        kind: "value" (the devices computed another value), "constant" (a captured constant differs for this
            micro-batch), "program" (forward ran other operators for this micro-batch), "capture" (eager computes other
            values while it is captured), "gradient" and "weight" (a parameter's gradient sum; a parameter or buffer
            after the step).
        operator: its name; for gradients and weights the parameter's or buffer's.
        line: of the program, "train.py:88"; "" if it is not known.
        scope: path of the module, with "/" between its parts.
        direction: "forward", "backward", "weight-gradient" or "update".
        stage: the stage that runs it; None if no stage does.
        batch, micro_batch: the index among the given batches, and of the micro-batch in it.
        element: index of the first element that differs. elements, of: the number of elements that differ, and of all.
        type: of the value, "f32[4,8]".
        found, expected: that element in the compiled program and in eager, or what they did. "" if a second run did not
            show it again.
        reason: in words.
    """

    kind: str
    operator: str
    line: str
    scope: str
    direction: str
    stage: int | None
    batch: int
    micro_batch: int
    element: tuple
    elements: int
    of: int
    type: str
    found: str
    expected: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of verify(). True if eager and compiled are equal; print it to read it.

    Attributes:
        batches, micro_batches: the numbers that were run. values: the number of compared values.
        difference: the first Difference, or None.
        notes: comparisons that were left out, and why.
        text: the whole result, for people.
    """

    batches: int
    micro_batches: int
    values: int
    difference: Difference | None
    notes: list
    text: str

    @property
    def equal(self) -> bool:
        """No value differs."""
        return self.difference is None

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self):
        return self.text


def verify(
    model: Any, *batches: Any, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> Verification:
    """Runs a model eagerly and compiled on the same batches and compares them value by value, bit for bit: what every
    operator computes in forward and backward, the sums of gradients, the results, and weights and buffers after each
    step. Both start from the model's present weights, from an optimizer without state and from the same random numbers.
    On accelerators eager runs on the first of them, and no other thread may use the model meanwhile. Forward is also
    captured again for every micro-batch. This finds constants of the program that have changed, however the program
    reads them.

    Afterwards model, gradients and random numbers are as before. Other things that forward writes, such as Python
    attributes, are not restored. verify() takes several times as long as the steps themselves.

    Args:
        model: a result of trainingModel or inferenceModel of abele or poptorch, or a module.
        batches: each has the arguments of one call: a tensor, a tuple or list of positional arguments, or a dict of
            named ones; all of the same shapes. Pass two or more, unless a call has several micro-batches, because
            constants are found by comparing micro-batches.
        options: if `model` is a module.
        optimizer: if `model` is a module; verifies the module in training.
    Returns: a Verification.
    Raises:
        abele.Error: the errors of compiling and running; E0702 for options without a counterpart in eager PyTorch:
            replicas, several processes, stochastic rounding, automatic loss scaling, synthetic data, stages on the CPU
            among accelerators.
    """
    random = torch.get_rng_state()  # options with a seed seed torch when a model is wrapped
    executor, is_ours = _executor_of(model, options, optimizer)
    try:
        with executor._lock:
            return _verified(executor, batches)
    finally:
        if is_ours:
            executor.destroy()
            wrapping.unwrap_model(model)  # also where nothing was compiled
        torch.set_rng_state(random)


def _executor_of(model, options, optimizer):
    """The executor to verify, and whether it was made here."""
    live = model if isinstance(model, Executor) else None
    if live is None and isinstance(model, torch.nn.Module):
        live = wrapping.executor_of(model)  # the module is wrapped for training
    if live is None:
        options = Options() if options is None else options.clone()
        # The comparison with eager names the difference, also if compiling would refuse the model for it.
        if not options.exists("check_capture"):
            options.checkCapture(False)
        make = inferenceModel(model, options) if optimizer is None else trainingModel(model, options, optimizer)
        return make, True
    if options is not None or optimizer is not None:
        raise user_error(
            "E0708",
            "options or an optimizer beside a wrapped model",
            expected="a plain module, or a wrapped model alone",
            remedy="leave them out: the wrapped model has its own",
        )
    return live, False


def _verified(executor, batches):
    if executor._training:
        executor.copyWeightsToHostIfNeeded()
    else:
        executor._native.pullFromTrainers()
    native = executor._options._native.programOptions(executor._training, executor._policy)
    calls = [executor._prepare(*_arguments_of(batch)) for batch in batches]
    model, options, training = executor._model, executor._options, executor._training
    excludes = [*options.source_location_excludes, *PACKAGE_FOLDERS]
    arguments = structures.skeleton(calls[0][0]) if calls else None

    def arguments_of(micro_batch):
        return _objects.close_call(*structures.reconstructTensorStructure(arguments, micro_batch))

    def tensors_of(result, built):
        changed = None
        if executor._policy.many_programs:
            result, changed = _objects.open_result(result, built, lambda tensor: True)
        return structures.flattenTensorStructure(result) + ([] if changed is None else changed.tensors)

    def captured(micro_batch):
        positional, named, built = arguments_of(micro_batch)
        with around_program(model, options, executor._around, executor._policy, training=training):
            result, _, _ = call_forward(
                model,
                positional,
                named,
                policy=executor._policy,
                options=options,
                excludes=excludes,
                training=training,
            )
        return tensors_of(result, built)

    def eager(micro_batch):
        positional, named, built = arguments_of(micro_batch)
        watch = watch_buffers(model, executor._policy)
        with watch, torch.set_grad_enabled(training), _made_beside(micro_batch):
            result = model(*positional, **named)
        keep_buffers(watch)
        return tensors_of(result, built)

    with around_compile(model):
        found = core().verify(
            native,
            captured,
            eager,
            take_buffers,
            model_tensors(model),
            [tensors for _, _, tensors, *_ in calls],
            executor._native.optimizerSpec(),
            _update_maker(executor),
            CaptureMode(),
            excludes,
            lambda: core().generatorsOf((model, calls)),
        )
    difference = found.pop("difference")
    return Verification(difference=None if difference is None else Difference(**difference), **found)


def _made_beside(tensors):
    """A context in which new tensors of forward are on the arguments' accelerator, as in the program."""
    device = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)
    return contextlib.nullcontext() if device is None else device


@dataclasses.dataclass(frozen=True)
class Call:
    """A batch with arguments of both kinds."""

    positional: tuple
    named: dict


def _arguments_of(batch):
    """(positional, named) arguments of one call."""
    if isinstance(batch, Call):
        return batch.positional, batch.named
    if isinstance(batch, dict):
        return (), batch
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


def _give_gradients(tensors, gradients):
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.grad = gradient


def _update_maker(executor):
    """Makes eager's optimizers: those of torch.optim themselves. None: the core's sequence of torch's operators."""
    optimizer = executor._optimizer
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, optim.Optimizer):
        return None
    if executor._host_updates is not None:
        return None  # the program ends with the gradients

    def make():
        tensors = [tensor for _, tensor, _ in model_tensors(executor._model)]
        held = [tensor for group in optimizer.param_groups for tensor in group["params"]]
        # Its own methods, also of a subclass, on the same parameters.
        fresh = copy.deepcopy(optimizer, {id(tensor): tensor for tensor in held})
        fresh.state = collections.defaultdict(dict)

        def update(gradients):
            pairs = zip(tensors, gradients, strict=True)
            taken = [gradient if tensor.is_leaf and tensor.requires_grad else None for tensor, gradient in pairs]
            before = [tensor.grad for tensor in tensors]
            _give_gradients(tensors, taken)
            try:
                fresh.step()
            finally:
                _give_gradients(tensors, before)

        return update

    return make
