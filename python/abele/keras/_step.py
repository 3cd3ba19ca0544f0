"""The forward of a model with its loss, as one torch module whose layers run in the stages of a pipeline."""

import contextlib
import functools
import threading

import torch
from keras.src import backend, tree
from keras.src.backend.torch import core as torch_core
from keras.src.backend.torch import random as torch_random
from keras.src.ops.function import Function
from keras.src.trainers.data_adapters import data_adapter_utils
from keras.src.utils import traceback_utils

from .._item_access import exchanged, replaced
from .._native import core
from ..annotations import Block
from ..losses import identity_loss
from . import _assignments
from ._plan import logger


class Structure:
    """The structure of nested data with None in it. Converts the data to and from a list of tensors."""

    def __init__(self, data):
        leaves = tree.flatten(data)
        self._data = data if not leaves else tree.pack_sequence_as(data, [None] * len(leaves))
        self._is_given = [leaf is not None for leaf in leaves]
        self.key = repr(self._data), tuple(self._is_given)

    @staticmethod
    def tensors(data):
        """The tensors of some data."""
        return [backend.convert_to_tensor(leaf) for leaf in tree.flatten(data) if leaf is not None]

    def pack(self, tensors):
        """Data of this structure from its tensors."""
        rest = iter(tensors)
        leaves = [next(rest) if given else None for given in self._is_given]
        return tree.pack_sequence_as(self._data, leaves) if leaves else self._data


class _Recorder:
    """Replaces the metric of one of several losses while the program is captured."""

    def __init__(self, values):
        self._values = values

    def update_state(self, value, sample_weight=None):
        self._values.append(value)


def block_name(stage):
    """The block of a stage."""
    return f"stage{stage}"


class Stages:
    """A model's graph cut into stages. It has no effect unless the model has several stages."""

    def __init__(self, model, assignments):
        graph = _assignments.graph_of(model)
        if graph is not model:
            assignments = _assignments.functional_of_sequential(graph, assignments)
        calls, self._key = _assignments.flatten(graph, assignments)
        self.number = 1 + max(call.stage for call in calls)
        self._graph = graph
        self._calls = [[call for call in calls if call.stage == stage] for stage in range(self.number)]

    @contextlib.contextmanager
    def cut(self):
        """Inside, this thread's calls of the model run in their stages."""
        with replaced("stages", self, _thread), exchanged(Function, "_run_through_graph", _stage_after_stage):
            yield

    def cuts(self, graph):
        """Whether these are stages of that graph."""
        return graph is self._graph

    def run(self, inputs, operation_fn=lambda operation: operation, call_fn=None):
        """Does the work of Function._run_through_graph, stage after stage."""
        graph = self._graph
        values = {self._key(tensor): value for tensor, value in zip(graph.inputs, tree.flatten(inputs), strict=True)}
        for stage, calls in enumerate(self._calls):
            with Block(block_name(stage)):
                for call in calls:
                    self._call(call, values, operation_fn)
        return tree.pack_sequence_as(graph._outputs_struct, [values[self._key(tensor)] for tensor in graph.outputs])

    @staticmethod
    def _call(call, values, operation_fn):
        node = call.node
        given = {id(tensor): values[key] for tensor, key in zip(node.input_tensors, call.inputs, strict=True)}
        args, kwargs = node.arguments.fill_in(given)
        results = tree.flatten(operation_fn(node.operation)(*args, **kwargs))
        values.update(zip(call.outputs, results, strict=True))


# While this thread captures: the model's stages, if it has several; its variables; seeds of layers whose random numbers
# came from the device's stream.
_thread = threading.local()


def _stage_after_stage(original):
    def run_through_graph(graph, *args, **kwargs):
        stages = getattr(_thread, "stages", None)
        if stages is None or not stages.cuts(graph):
            return original(graph, *args, **kwargs)
        return stages.run(*args, **kwargs)

    return run_through_graph


def _stream_of_the_device(original):
    """Random numbers of layers come from the device's stream, even those of layers with their own seeds."""

    def generator(seed):
        seeds = getattr(_thread, "seeds", None)
        if seeds is None:
            return original(seed)
        if not seeds:
            logger.warning(
                "A seed of a layer has no effect in a compiled model: random numbers come from the device's stream, "
                "which starts where keras.utils.set_random_seed() put torch's."
            )
        seeds.append(seed)
        return None

    return generator


def _both_branches(original):
    """keras.ops.cond computes both branches if its condition may differ from batch to batch, and chooses.

    Not for branches that write variables, or with gradients: one that is not chosen could turn these into NaN.
    """

    def cond(condition, true_fn, false_fn):
        variables = getattr(_thread, "variables", None)
        if variables is None or not (isinstance(condition, torch.Tensor) and core().mayVary(condition)):
            return original(condition, true_fn, false_fn)
        versions = [variable._value._version for variable in variables]
        results = true_fn(), false_fn()
        are_pure = versions == [variable._value._version for variable in variables]
        if not are_pure or any(tensor.requires_grad for tensor in Structure.tensors(results)):
            return original(condition, true_fn, false_fn)
        return tree.map_structure(functools.partial(torch.where, condition), *results)

    return cond


@contextlib.contextmanager
def _captured_functions(variables):
    """Inside, functions of Keras that no mode of torch can replace do on this thread what a program can do."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(replaced("seeds", [], _thread))
        stack.enter_context(replaced("variables", variables, _thread))
        stack.enter_context(exchanged(torch_random, "torch_seed_generator", _stream_of_the_device))
        stack.enter_context(exchanged(torch_core, "cond", _both_branches))
        yield


@contextlib.contextmanager
def plain_tracebacks():
    """Removes Keras' wrappers of calls, which would read values of tensors to describe them in messages."""
    was_enabled = traceback_utils.is_traceback_filtering_enabled()
    traceback_utils.disable_traceback_filtering()
    try:
        yield
    finally:
        if was_enabled:
            traceback_utils.enable_traceback_filtering()


class StepModule(torch.nn.Module):
    """forward(*tensors of a micro-batch) -> tensors. Parameters are the model's trainable variables p0, p1, ...;
    buffers are its other variables.

    mode: "train", "test" or "predict".
    """

    def __init__(self, model, mode, structure, stages, *, wants_predictions):
        super().__init__()
        self.trainable = list(model.trainable_variables) if mode == "train" else []
        known = {id(variable) for variable in self.trainable}
        self.others = [variable for variable in _held_variables(model) if id(variable) not in known]
        for index, variable in enumerate(self.trainable):
            self.register_parameter(f"p{index}", variable._value)
        for index, variable in enumerate(self.others):
            self.register_buffer(f"b{index}", variable._value)
        self._run = functools.partial(_forward, model, mode, structure, stages, wants_predictions, self)
        self.predictions = None  # Structure of the results after the losses
        self.num_losses = 0  # number of results for the whole loss and its parts, which come first
        self.masked = ()  # indices of the predictions with a mask; the masks come last

    def forward(self, *tensors):
        """The loss, its parts if there are several outputs, predictions and their masks."""
        return self._run(tensors)


def _held_variables(model):
    """Variables that a step may read or write: the model's, those of its metrics, the loss scale."""
    found = {id(variable): variable for variable in model.variables}
    own = [model._loss_tracker, model._compile_metrics, model._compile_loss]
    for metric in model.metrics:
        if not any(metric is known for known in own) and not _is_of_loss(model, metric):
            found.update((id(variable), variable) for variable in metric.variables)
    scale = getattr(getattr(model, "optimizer", None), "dynamic_scale", None)
    if scale is not None:
        found[id(scale)] = scale
    return list(found.values())


def _is_of_loss(model, metric):
    return model._compile_loss is not None and any(metric is known for known in model._compile_loss.metrics)


def _forward(model, mode, structure, stages, wants_predictions, step, tensors):
    training = mode == "train"
    x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(structure.pack(tensors))
    results, parts = [], []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_captured_functions(step.trainable + step.others))
        stack.enter_context(plain_tracebacks())
        if stages is not None:
            stack.enter_context(stages.cut())
        predicted = model(x, training=training) if model._call_has_training_arg else model(x)
        if mode != "predict":
            if stages is not None:
                stack.enter_context(Block(block_name(stages.number - 1)))
            stack.enter_context(_recorded(model, parts))
            loss = model._compute_loss(x=x, y=y, y_pred=predicted, sample_weight=sample_weight, training=training)
            results = _losses(model, loss, training) + parts
    model._clear_losses()  # because they are values of the capture
    step.num_losses = len(results)
    if not wants_predictions:
        return tuple(results)
    step.predictions = Structure(predicted)
    values = Structure.tensors(predicted)
    for value in values:
        value.__dict__.pop("_keras_logits", None)  # those of softmax and sigmoid, which only losses read
    masks = [backend.get_keras_mask(value) for value in values]
    step.masked = tuple(index for index, mask in enumerate(masks) if mask is not None)
    return (*results, *values, *(masks[index] for index in step.masked))


def _losses(model, loss, training):
    """The loss, and the scaled loss for backward if it differs."""
    if not training:
        return [loss]
    scaled = model.optimizer.scale_loss(loss)
    marked = identity_loss(scaled, reduction="none")
    return [marked] if scaled is loss else [loss.detach(), marked]


@contextlib.contextmanager
def _recorded(model, values):
    """Inside, the losses of single outputs go into `values` instead of their metrics."""
    compiled = model._compile_loss
    if compiled is None or not compiled._metrics:
        yield
        return
    metrics = list(compiled._metrics)
    compiled._metrics[:] = [_Recorder(values) for _ in metrics]
    try:
        yield
    finally:
        compiled._metrics[:] = metrics
