"""Additional methods of models that are made under a strategy. Source: spec keras.md, sections 1, 2 and 4.

The class of such a model is a subclass of the class that it was made from, with the same name. Keras' own classes do
not change, and neither do models that are made outside of a strategy.
"""

import contextlib
import inspect

from keras.src import api_export
from keras.src.backend.torch.trainer import TorchTrainer
from keras.src.models.functional import Functional
from keras.src.models.sequential import Sequential
from keras.src.saving import object_registration
from keras.src.trainers.data_adapters import data_adapter_utils

from .._errors import refused
from . import _assignments, _plan, _summary
from ._callbacks import telling_each_batch
from ._execution import Execution
from ._options import Settings, positive

CONFIG_KEY = "ipu"  # key in a model's config
_STATE = "_abele_keras"  # key in a model's __dict__
_MODES = {"train": "train_step", "test": "test_step", "predict": "predict_step"}
_FUNCTIONS = {mode: f"{mode}_function" for mode in _MODES}


class State:
    """Facts about a model that Keras does not store."""

    def __init__(self):
        self.settings = Settings()
        self.assignments = None
        self.is_checked = True  # the assignments were checked to form a pipeline
        self.is_outdated = False  # layers were added or removed after stages had been assigned
        self.ignores_scopes = False  # after a reset: scopes where layers were made no longer count
        self.executions = {}  # mode -> the last Execution
        self.steps = None  # steps_per_execution of the running fit
        self.filed_steps = None  # steps_per_execution of the file that the model was read from
        self.asynchronous_callbacks = False
        self.each_batch = None  # callbacks of the running call, if they get every micro-batch


def state_of(model):
    """The State of a model, made at its first use."""
    return model.__dict__.setdefault(_STATE, State())


def _plain(model):
    """The model with the methods of its original class."""
    return super(type(model)._abele_extended, model)


# Stages ---------------------------------------------------------------------------------------------------------------
def _require_graph(model, what):
    """The Functional graph in which stages are assigned. A Sequential model does not need a graph for that."""
    if not isinstance(model, (Functional, Sequential)):
        raise NotImplementedError(
            f"`{what}` needs a Functional or a Sequential model, however `{model.name}` is a "
            f"{type(model).__name__}: a subclassed model runs on one device as a whole."
        )
    original = Sequential if isinstance(model, Sequential) else Functional
    if type(model).call is not original.call:
        raise refused(
            RuntimeError,
            f"The model `{model.name}` overrides `call`, so that its layers cannot be assigned to pipeline stages: "
            "only the graph of layers is pipelined. Remove the override, or do not assign stages.",
        )
    return model


def _current_assignments(model):
    """The assignments that were set, or that PipelineStage scopes made; None: not a pipeline."""
    state = state_of(model)
    if state.assignments is None and isinstance(model, Sequential) and not state.ignores_scopes:
        return None if state.is_outdated else _assignments.from_scopes_sequential(model)
    if not state.is_checked:
        state.assignments = _assignments.require_functional(model, state.assignments)
        state.is_checked = True
    return state.assignments


def get_pipeline_stage_assignment(self):
    """The pipeline stages of the model's layers, as a new list of the current assignment objects in post-order. The
    objects have no stages if none were set.

    Returns: FunctionalLayerPipelineStageAssignment and FunctionalNestedModelPipelineStageAssignment objects, one per
        invocation; for a Sequential model SequentialLayerPipelineStageAssignment, one per layer.
    """
    _require_graph(self, "get_pipeline_stage_assignment")
    current = _current_assignments(self)
    if current is not None:
        return list(current)
    return _assignments.fresh_sequential(self) if isinstance(self, Sequential) else _assignments.fresh(self)


def set_pipeline_stage_assignment(self, pipeline_stage_assignment):
    """Assigns the model's layers to pipeline stages. From now on fit, evaluate and predict run as this pipeline.

    Args:
        pipeline_stage_assignment: assignment objects, as get_pipeline_stage_assignment() returns them; for a Sequential
            model also stages as ints.
    Raises:
        ValueError: it does not fit the model, or does not form a pipeline.
        RuntimeError: the model has its own `call`.
    """
    _require_graph(self, "set_pipeline_stage_assignment")
    require = _assignments.require_sequential if isinstance(self, Sequential) else _assignments.require_functional
    state = state_of(self)
    state.assignments = require(self, pipeline_stage_assignment)
    state.is_checked, state.is_outdated = True, False
    _recompile(self)


def reset_pipeline_stage_assignment(self):
    """Makes the model an ordinary one again, without a pipeline."""
    state = state_of(self)
    state.assignments, state.is_checked, state.is_outdated, state.ignores_scopes = None, True, False, True
    _recompile(self)


def print_pipeline_stage_assignment_summary(self, line_length=None, print_fn=None):
    """Prints a table of the layers and their pipeline stages.

    Args:
        line_length: width of the lines; default 89, for Sequential models 65.
        print_fn: called with each line; default print.
    """
    _summary.print_summary(
        self.name,
        self.get_pipeline_stage_assignment(),
        sequential=isinstance(self, Sequential),
        line_length=line_length,
        print_fn=print_fn,
    )


# Settings -------------------------------------------------------------------------------------------------------------
def set_pipelining_options(
    self,
    gradient_accumulation_steps_per_replica=None,
    device_mapping=None,
    accumulate_outfeed=None,
    gradient_accumulation_reduction_method=None,
    pipeline_schedule=None,
    recomputation_mode=None,
    offload_weight_update_variables=None,
    replicated_optimizer_state_sharding=None,
    forward_propagation_stages_poplar_options=None,
    backward_propagation_stages_poplar_options=None,
    **kwargs,
):
    """Sets how the model runs as a pipeline. Arguments that are None keep the earlier value.

    Args:
        gradient_accumulation_steps_per_replica: micro-batches of each replica for a weight update; a multiple of two
            times the number of stages (PipelineSchedule.Grouped), or of the number of stages (Interleaved).
        device_mapping: the device of each stage; default: stage k on device k.
        gradient_accumulation_reduction_method: GradientAccumulationReductionMethod or its name; default MEAN.
        pipeline_schedule: PipelineSchedule; default Grouped. Results never depend on it.
        recomputation_mode: RecomputationMode; all but Auto recompute forward for backward.
        accumulate_outfeed, offload_weight_update_variables, replicated_optimizer_state_sharding, *_poplar_options,
            kwargs: stored without effect; only the original hardware used them.
    Raises:
        ValueError: impossible values, and arguments of other APIs.
    """
    others = {
        "accumulate_outfeed": accumulate_outfeed,
        "offload_weight_update_variables": offload_weight_update_variables,
        "replicated_optimizer_state_sharding": replicated_optimizer_state_sharding,
        "forward_propagation_stages_poplar_options": forward_propagation_stages_poplar_options,
        "backward_propagation_stages_poplar_options": backward_propagation_stages_poplar_options,
    }
    state_of(self).settings.set_pipelining(
        gradient_accumulation_steps_per_replica,
        device_mapping,
        gradient_accumulation_reduction_method,
        pipeline_schedule,
        recomputation_mode,
        {**{name: value for name, value in others.items() if value is not None}, **kwargs},
    )
    _recompile(self)


def set_gradient_accumulation_options(
    self, gradient_accumulation_steps_per_replica=None, gradient_accumulation_reduction_method=None, **kwargs
):
    """Sets how many micro-batches of each replica a weight update takes, for models that are not a pipeline.

    Args:
        gradient_accumulation_steps_per_replica: a positive int.
        gradient_accumulation_reduction_method: GradientAccumulationReductionMethod or its name; default MEAN.
        kwargs: stored without effect; only the original hardware used them.
    Raises:
        ValueError: impossible values, and arguments of other APIs.
    """
    state_of(self).settings.set_gradient_accumulation(
        gradient_accumulation_steps_per_replica, gradient_accumulation_reduction_method, kwargs
    )
    _recompile(self)


def set_infeed_queue_options(self, prefetch_depth=None, **kwargs):
    """Stored without effect, because data is handed over directly.

    Raises:
        ValueError: prefetch_depth is not a positive int.
    """
    if prefetch_depth is not None:
        state_of(self).settings.prefetch_depth = positive("prefetch_depth", prefetch_depth)
    state_of(self).settings.others.update(kwargs)


def set_outfeed_queue_options(self, **kwargs):
    """Stored without effect, because results are handed over directly."""
    state_of(self).settings.outfeed.update(kwargs)


def set_asynchronous_callbacks(self, asynchronous=False):
    """Chooses the batches that callbacks get in fit, evaluate and predict.

    Args:
        asynchronous: True: every micro-batch, with its own results; False: the last one of each execution.
    Raises:
        TypeError: the argument is not a bool.
    """
    if not isinstance(asynchronous, bool):
        raise refused(TypeError, f"Expected `asynchronous` to be a bool, but got {asynchronous!r} instead.")
    state_of(self).asynchronous_callbacks = asynchronous


def export_for_ipu_serving(self, *args, **kwargs):
    """Not available.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        "`export_for_ipu_serving` is not supported: save the model with `Model.save()` and serve `Model.predict()`."
    )


# Running --------------------------------------------------------------------------------------------------------------
def _recompile(model):
    """Makes the next fit, evaluate or predict compile again."""
    state_of(model).executions.clear()
    model.train_function = model.test_function = model.predict_function = None


def _stage_count(model):
    state = state_of(model)
    if state.is_outdated:
        raise refused(
            RuntimeError,
            f"The layers of the model `{model.name}` have changed since its pipeline stages were assigned. Call "
            "`set_pipeline_stage_assignment()` again, or `reset_pipeline_stage_assignment()`.",
        )
    assignments = _current_assignments(model)
    if assignments is None:
        return 1
    _require_graph(model, "fit, evaluate and predict with pipeline stages")
    return 1 + max(leaf.pipeline_stage for leaf in _assignments.leaves(assignments))


def _plan_for(model, mode):
    """The plan for a model in a mode. Checks that compiled programs support its settings."""
    step = _MODES[mode]
    if getattr(type(model), step) is not getattr(TorchTrainer, step):
        raise NotImplementedError(
            f"The model `{model.name}` overrides `{step}`, which compiled programs do not call. Override "
            "`compute_loss` or `compute_metrics` instead."
        )
    if model.run_eagerly:
        raise refused(
            ValueError, f"The model `{model.name}` was compiled with run_eagerly=True, which a strategy cannot do."
        )
    return _plan.plan_of(model.name, state_of(model).settings, _stage_count(model), training=mode == "train")


def _function(model, mode, force):
    """The function that runs the batches of one execution."""
    plan, state = _plan_for(model, mode), state_of(model)
    current = getattr(model, _FUNCTIONS[mode])  # None after compile(), when losses and metrics may have changed
    if isinstance(current, Execution) and not force and current.plan == plan:
        return current
    state.executions[mode] = Execution(
        model, state, mode, plan, _current_assignments(model) if plan.stages > 1 else None
    )
    return state.executions[mode]


def make_train_function(self, force=False):
    """The function that runs the batches of one execution in fit."""
    self.train_function = _function(self, "train", force)


def make_test_function(self, force=False):
    """The function that runs the batches of one execution in evaluate."""
    self.test_function = _function(self, "test", force)


def make_predict_function(self, force=False):
    """The function that runs the batches of one execution in predict."""
    self.predict_function = _function(self, "predict", force)


def _symbolic_build(self, iterator=None, data_batch=None):
    """Builds the model from one batch, so that data which can be read only once loses only that batch."""
    if iterator is None:
        return _plain(self)._symbolic_build(data_batch=data_batch)
    number, iterator.steps_per_execution = iterator.steps_per_execution, 1
    try:
        return _plain(self)._symbolic_build(iterator=iterator, data_batch=data_batch)
    finally:
        iterator.steps_per_execution = number


@contextlib.contextmanager
def _taking_batches(model, number):
    """Inside, iterators over epochs yield this number of batches at once."""
    previous = model.steps_per_execution
    model.steps_per_execution = number
    try:
        yield
    finally:
        model.steps_per_execution = previous


def _arguments(method, model, args, kwargs):
    """The arguments of a call by name."""
    bound = inspect.signature(method).bind(model, *args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _wanted_steps(model):
    return state_of(model).steps or model.steps_per_execution


def _batch_size(x, batch_size):
    """The size of a micro-batch; None if only the data knows it."""
    if batch_size is None and not hasattr(x, "shape") and not isinstance(x, (list, tuple, dict)):
        return getattr(x, "batch_size", None)
    return batch_size or 32


def _check_validation(model, given, steps):
    """Refuses data that cannot be evaluated before the first epoch instead of after it."""
    plan = _plan_for(model, "test")
    x = data_adapter_utils.unpack_x_y_sample_weight(given["validation_data"])[0]
    batches = _plan.batches_of(x, given["validation_batch_size"] or given["batch_size"], given["validation_steps"])
    _plan.steps_per_execution(model.name, steps, batches, plan, training=False, warn=False)


def fit(self, *args, **kwargs):
    """See keras.Model.fit. batch_size is the size of a micro-batch."""
    self._assert_compile_called("fit")
    given = _arguments(TorchTrainer.fit, self, args, kwargs)
    plan, wanted, state = _plan_for(self, "train"), self.steps_per_execution, state_of(self)
    split = given["validation_split"] if given["validation_data"] is None else 0.0
    batches = _plan.batches_of(given["x"], given["batch_size"], given["steps_per_epoch"], validation_split=split)
    steps = _plan.steps_per_execution(self.name, wanted, batches, plan, training=True)
    if given["validation_data"] is not None:
        _check_validation(self, given, wanted)
    _plan.announce(self.name, wanted, _batch_size(given["x"], given["batch_size"]), plan, training=True)
    state.steps = wanted
    try:
        with (
            _taking_batches(self, steps * plan.replicas),
            telling_each_batch(self, state, "fit", args, kwargs, batches) as (args, kwargs),
        ):
            return _plain(self).fit(*args, **kwargs)
    finally:
        state.steps = None


def evaluate(self, *args, **kwargs):
    """See keras.Model.evaluate. batch_size is the size of a micro-batch."""
    inner = {name: value for name, value in kwargs.items() if name != "_use_cached_eval_dataset"}
    given = _arguments(TorchTrainer.evaluate, self, args, inner)
    plan, wanted = _plan_for(self, "test"), _wanted_steps(self)
    if kwargs.get("_use_cached_eval_dataset"):
        iterator = self._eval_epoch_iterator
        batches = _plan.batches_of(given["x"], given["batch_size"], given["steps"])
        steps = _plan.steps_per_execution(self.name, wanted, batches, plan, training=False)
        iterator.steps_per_execution = steps * plan.replicas
        return _plain(self).evaluate(*args, **kwargs)
    self._assert_compile_called("evaluate")
    batches = _plan.batches_of(given["x"], given["batch_size"], given["steps"])
    steps = _plan.steps_per_execution(self.name, wanted, batches, plan, training=False)
    _plan.announce(self.name, wanted, None, plan, training=False)
    with (
        _taking_batches(self, steps * plan.replicas),
        telling_each_batch(self, state_of(self), "evaluate", args, kwargs, batches) as (args, kwargs),
    ):
        return _plain(self).evaluate(*args, **kwargs)


def predict(self, *args, **kwargs):
    """See keras.Model.predict. batch_size is the size of a micro-batch."""
    given = _arguments(TorchTrainer.predict, self, args, kwargs)
    plan, wanted = _plan_for(self, "predict"), _wanted_steps(self)
    batches = _plan.batches_of(given["x"], given["batch_size"], given["steps"])
    steps = _plan.steps_per_execution(self.name, wanted, batches, plan, training=False)
    _plan.announce(self.name, wanted, None, plan, training=False)
    with (
        _taking_batches(self, steps * plan.replicas),
        telling_each_batch(self, state_of(self), "predict", args, kwargs, batches) as (args, kwargs),
    ):
        return _plain(self).predict(*args, **kwargs)


@contextlib.contextmanager
def _splitting(model, mode):
    """Inside, a given batch is cut into the micro-batches of one execution."""
    getattr(model, f"make_{mode}_function")()
    execution = getattr(model, _FUNCTIONS[mode])
    execution.is_splitting = True
    try:
        yield
    finally:
        execution.is_splitting = False


def train_on_batch(self, *args, **kwargs):
    """See keras.Model.train_on_batch. The batch is cut into the micro-batches of one weight update."""
    self._assert_compile_called("train_on_batch")
    with _splitting(self, "train"):
        return _plain(self).train_on_batch(*args, **kwargs)


def test_on_batch(self, *args, **kwargs):
    """See keras.Model.test_on_batch. The batch is split among the replicas."""
    self._assert_compile_called("test_on_batch")
    with _splitting(self, "test"):
        return _plain(self).test_on_batch(*args, **kwargs)


def predict_on_batch(self, *args, **kwargs):
    """See keras.Model.predict_on_batch. The batch is split among the replicas."""
    with _splitting(self, "predict"):
        return _plain(self).predict_on_batch(*args, **kwargs)


# Layers, files --------------------------------------------------------------------------------------------------------
def _note_change(model):
    state = state_of(model)
    state.is_outdated |= state.assignments is not None
    state.assignments = None
    _recompile(model)


def add(self, layer, rebuild=True):
    """See keras.Sequential.add. Drops assigned pipeline stages."""
    _note_change(self)
    _plain(self).add(layer, rebuild=rebuild)


def pop(self, rebuild=True):
    """See keras.Sequential.pop. Drops assigned pipeline stages."""
    _note_change(self)
    return _plain(self).pop(rebuild=rebuild)


def _compiled_steps(model):
    """steps_per_execution of the last compile()."""
    compiled = getattr(model, "_compile_config", None)
    return 1 if compiled is None else compiled.config["steps_per_execution"]


def get_config(self):
    """See keras.Model.get_config. Adds the pipeline stages and settings under the key "ipu"."""
    config = _plain(self).get_config()
    state = state_of(self)
    kept = state.settings.to_plain()
    assignments = _current_assignments(self) if isinstance(self, (Functional, Sequential)) else None
    if assignments is not None:
        kept["stages"] = _assignments.to_plain(assignments)
    steps = _compiled_steps(self)
    if steps != 1 and "layers" in config:  # other configs are the arguments of a class of the program
        kept["steps_per_execution"] = steps
    if kept and isinstance(self, (Functional, Sequential)):
        config[CONFIG_KEY] = kept
    return config


def get_compile_config(self):
    """See keras.Model.get_compile_config. With steps_per_execution 1 if get_config() has the number, because a model
    that is read without a strategy refuses others."""
    config = _plain(self).get_compile_config()
    if "steps_per_execution" in self.get_config().get(CONFIG_KEY, ()):
        config["steps_per_execution"] = 1
    return config


def compile_from_config(self, config):
    """See keras.Model.compile_from_config."""
    steps = state_of(self).filed_steps
    _plain(self).compile_from_config(config if steps is None else {**config, "steps_per_execution": steps})


def restore(model, kept):
    """Restores a model's stages and settings from the key "ipu" of its config."""
    state = state_of(model)
    state.settings.from_plain(kept)
    state.filed_steps = kept.get("steps_per_execution")
    if "stages" in kept:
        assignments = model.get_pipeline_stage_assignment()
        state.assignments = None
        model.set_pipeline_stage_assignment(_assignments.from_plain(assignments, kept["stages"]))


def take_scopes(model):
    """Takes the stages of a Functional model's layers from PipelineStage scopes."""
    found = _assignments.from_scopes(model)
    if found is not None:
        state = state_of(model)
        state.assignments, state.is_checked = found, False  # a model may be one stage of another model


# Classes --------------------------------------------------------------------------------------------------------------
_METHODS = (
    get_pipeline_stage_assignment,
    set_pipeline_stage_assignment,
    reset_pipeline_stage_assignment,
    print_pipeline_stage_assignment_summary,
    set_pipelining_options,
    set_gradient_accumulation_options,
    set_infeed_queue_options,
    set_outfeed_queue_options,
    set_asynchronous_callbacks,
    export_for_ipu_serving,
    make_train_function,
    make_test_function,
    make_predict_function,
    _symbolic_build,
    fit,
    evaluate,
    predict,
    train_on_batch,
    test_on_batch,
    predict_on_batch,
    get_config,
    get_compile_config,
    compile_from_config,
)
_classes = {}


def is_extended(cls):
    """Whether models of this class have the methods."""
    return "_abele_extended" in cls.__dict__


def extended(cls, reduce):
    """The subclass of a model class with these methods. Returns such a subclass unchanged.

    Args:
        reduce: its __reduce__.
    """
    if is_extended(cls):
        return cls
    if cls not in _classes:
        methods = {"__reduce__": reduce, **{method.__name__: method for method in _METHODS}}
        if issubclass(cls, Sequential):
            methods.update(add=add, pop=pop)
        made = type(cls)(cls.__name__, (cls,), {"__module__": cls.__module__, "__doc__": cls.__doc__, **methods})
        made.__qualname__ = cls.__qualname__
        made._abele_extended = made
        _register_as(cls, made)
        _classes[cls] = made
    return _classes[cls]


def _register_as(cls, made):
    """Gives the subclass the name of its base in files."""
    name = api_export.get_name_from_symbol(cls)
    if name is not None:
        api_export.REGISTERED_OBJS_TO_NAMES[made] = name
    custom = object_registration.GLOBAL_CUSTOM_NAMES.get(cls)
    if custom is not None:
        object_registration.GLOBAL_CUSTOM_NAMES[made] = custom
