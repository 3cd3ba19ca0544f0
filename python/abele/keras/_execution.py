"""fit, evaluate and predict of a model by compiled programs, and the metrics of their results.

The devices run forward and backward. A group's gradients, summed over its micro-batches and replicas, go to the Keras
optimizer. It updates the model's own variables, either as a program captured from the optimizer or itself on the host
(_update.py). So every optimizer, schedule and callback of Keras works, with Keras' numbers.
"""

import torch
from keras.src import backend
from keras.src.trainers.data_adapters import data_adapter_utils

from .._errors import refused
from .._native import core
from ..enums import ConnectionType, OutputMode, ReductionType
from ..options import Options
from ..strategies import PipelinedExecution, ShardedExecution, Stage
from ._plan import logger
from ._programs import OwnedSource, shares_all
from ._step import Stages, StepModule, Structure, block_name
from ._update import Updates
from .pipelining_ops import PipelineSchedule


class _Compiled:
    """A program of the model for inputs of one kind, with its weights."""

    def __init__(self, model, mode, plan, stages, structure, tensors, iterations, *, owner, wants_predictions):
        self.step = StepModule(model, mode, structure, stages, wants_predictions=wants_predictions)
        self._values = [variable._value for variable in [*self.step.trainable, *self.step.others]]
        options, rules = _options(plan, mode, iterations), core().Policy(many_programs=False)
        source = OwnedSource(self.step, options, training=mode == "train", policy=rules, owner=owner)
        self._native = core().Model(source, mode == "train", options, rules)
        before = self._versions(self.step.others)
        with torch.no_grad() if mode != "train" else torch.enable_grad():
            self._native.choose(tensors, "", (tuple(tensors), {}))
        self.writes = self._versions(self.step.others) != before
        self._copied = self.step.others
        if not shares_all(self.session, self.step.trainable):
            self._copied = [*self.step.trainable, *self.step.others]
        self._uploaded = self._versions(self._copied)

    @property
    def session(self):
        """The native session."""
        return self._native.session()

    @staticmethod
    def _versions(variables):
        return [variable._value._version for variable in variables]

    def fits(self):
        """Whether the model still has the variables that this was compiled with."""
        variables = [*self.step.trainable, *self.step.others]
        return all(
            variable._value is value and variable.trainable == (index < len(self.step.trainable))
            for index, (variable, value) in enumerate(zip(variables, self._values, strict=True))
        )

    def run(self, tensors):
        """Runs one call. Returns: its results. Variables that the model wrote have their new values."""
        if self._versions(self._copied) != self._uploaded:
            self._native.upload()
        results = self._native.structure().result_of(self._native.step(tensors, tensors))
        if self.writes:
            self._native.download(with_state=False)
        self._uploaded = self._versions(self._copied)
        return list(results)


def _options(plan, mode, iterations):
    options = Options()
    options.connectionType(ConnectionType.Always)
    options.deviceIterations(iterations)
    options.replicationFactor(plan.replicas)
    options.broadcastBuffers(False)  # the model gets the first replica's statistics of normalisations
    options.outputMode(OutputMode.All)
    if mode == "train":
        options.Training.gradientAccumulation(plan.accumulation)
        options.Training.accumulationAndReplicationReductionType(ReductionType.Sum)
    if plan.stochastic_rounding:
        options.Precision.enableStochasticRounding(True)
    if plan.exceptions:
        options.Precision.enableFloatingPointExceptions(True)
    blocks = [Stage(block_name(stage)).ipu(device) for stage, device in enumerate(plan.devices)]
    if plan.stages > 1 and plan.schedule == PipelineSchedule.Sequential:
        options.setExecutionStrategy(ShardedExecution(*blocks))
    elif plan.stages > 1 or plan.recompute:
        strategy = PipelinedExecution(*blocks) if plan.stages > 1 else PipelinedExecution()
        options.setExecutionStrategy(strategy.recompute(plan.recompute))
    return options


def _parts(batch, number):
    """A batch cut into this number of equal parts."""
    structure, tensors = Structure(batch), Structure.tensors(batch)
    if any(tensor.shape[0] % number for tensor in tensors):
        raise refused(
            ValueError,
            f"The batch of {tensors[0].shape[0]} samples cannot be cut into {number} equal micro-batches, one for each "
            "of the steps that gradients are accumulated for and for each replica.",
        )
    return [structure.pack(parts) for parts in zip(*(tensor.chunk(number) for tensor in tensors), strict=True)]


def _shapes(tensors):
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


class Execution:
    """The execution of a model in one mode, "train", "test" or "predict", from a compile() to the next change."""

    def __init__(self, model, state, mode, plan, assignments):
        self._model = model
        self._state = state
        self._mode = mode
        self.plan = plan
        self._assignments = assignments
        self._stages = None
        self._compiled = {}
        self._last = None
        self._owner = object()  # owner of the programs' shared memory; not self, which native models would keep alive
        self.updates = Updates(self._owner) if mode == "train" else None
        self.is_splitting = False  # the given batch must be cut into micro-batches

    def __call__(self, batches):
        """Runs the batches of one execution. Returns: logs (train, test) or predictions."""
        with torch.no_grad():
            if self.is_splitting:
                batches = _parts(batches[0], self.plan.group)
            if self._mode == "train":
                return self._train(batches)
            results = self._infer(batches)
            return results if self._mode == "predict" else self._model.get_metrics_result()

    @property
    def session(self):
        """The native session of the last call, or None."""
        return None if self._last is None else self._last.session

    # Training ---------------------------------------------------------------------------------------------------------
    def _train(self, batches):
        group = self.plan.group
        whole = len(batches) // group * group
        if whole < len(batches):
            logger.warning(
                "The last %d batches of the data are left out: a weight update takes %d.", len(batches) - whole, group
            )
        for begin in range(0, whole, group):
            self._update(batches[begin : begin + group])
        return self._model.get_metrics_result()

    def _update(self, batches):
        compiled, results = self._run(batches, iterations=1)
        sums = compiled.session.gradientSums()
        gradients = [sums.get(f"p{index}") for index in range(len(compiled.step.trainable))]
        divisor = len(batches) if self.plan.is_mean else 1
        self.updates.apply(self._model.optimizer, gradients, compiled.step.trainable, divisor)
        self._follow(compiled, batches, results)

    # Both -------------------------------------------------------------------------------------------------------------
    def _infer(self, batches):
        whole = len(batches) // self.plan.replicas * self.plan.replicas
        if whole < len(batches):
            raise refused(
                ValueError,
                f"{len(batches)} batches are left at the end of the data, which cannot be dealt to "
                f"{self.plan.replicas} replicas.",
            )
        compiled, results = self._run(batches, iterations=len(batches) // self.plan.replicas)
        if self._mode == "predict":
            predictions = compiled.step.predictions
            for parts in zip(*(values.chunk(len(batches)) for values in results), strict=True):
                self._tell(lambda parts=parts: {"outputs": predictions.pack(parts)})
            return predictions.pack(results)
        self._follow(compiled, batches, results)
        return None

    def _run(self, batches, iterations):
        """Runs batches of equal shapes as one call. Returns: (program, its results)."""
        if self._mode == "predict":
            batches = [data_adapter_utils.unpack_x_y_sample_weight(batch)[:1] for batch in batches]
        structure = Structure(batches[0])
        rows = [structure.tensors(batch) for batch in batches]
        shapes = [[(tensor.shape, tensor.dtype) for tensor in row] for row in rows]
        different = [index for index, shape in enumerate(shapes) if shape != shapes[0]]
        if different:
            raise refused(
                ValueError,
                "The batches of one execution have different shapes: all batches of a compiled model need one size. "
                f"Found {_shapes(rows[0])} and {_shapes(rows[different[0]])}.",
            )
        tensors = [torch.cat(parts) if len(parts) > 1 else parts[0] for parts in zip(*rows, strict=True)]
        key = structure.key, repr(shapes[0]), iterations
        compiled = self._compiled.get(key)
        if compiled is None or not compiled.fits():
            compiled = self._compile(structure, tensors, iterations)
            self._compiled[key] = compiled
        self._last = compiled
        return compiled, compiled.run(tensors)

    def _compile(self, structure, tensors, iterations):
        if self._assignments is not None and self._stages is None:
            self._stages = Stages(self._model, self._assignments)
        return _Compiled(
            self._model,
            self._mode,
            self.plan,
            self._stages,
            structure,
            tensors,
            iterations,
            owner=self._owner,
            wants_predictions=self._mode == "predict" or _reads_predictions(self._model),
        )

    def _follow(self, compiled, batches, results):
        """Updates metrics batch by batch, as Keras' steps do."""
        model, step = self._model, compiled.step
        losses = [values.reshape(-1) for values in results[: step.num_losses]]
        rest = [values.chunk(len(batches)) for values in results[step.num_losses :]]
        for index, batch in enumerate(batches):
            x, y, sample_weight = data_adapter_utils.unpack_x_y_sample_weight(batch)
            count = Structure.tensors(x)[0].shape[0]
            model._loss_tracker.update_state(losses[0][index], sample_weight=count)
            parts = model._compile_loss.metrics if model._compile_loss is not None else []
            for metric, values in zip(parts, losses[len(losses) - len(parts) :], strict=True):
                metric.update_state(values[index], sample_weight=count)
            if rest:
                model.compute_metrics(x, y, self._predicted(step, [parts[index] for parts in rest]), sample_weight)
            self._tell(model.get_metrics_result)

    def _tell(self, logs):
        """Passes logs() to callbacks that get every batch."""
        callbacks = self._state.each_batch
        if callbacks is not None:
            callbacks.tell(self._mode, logs())

    @staticmethod
    def _predicted(step, values):
        number = len(values) - len(step.masked)
        for position, mask in zip(step.masked, values[number:], strict=True):
            backend.set_keras_mask(values[position], mask)
        return step.predictions.pack(values[:number])


def _reads_predictions(model):
    """Whether metrics use the predictions in addition to the loss."""
    from keras.src.trainers.trainer import Trainer

    return model._compile_metrics is not None or type(model).compute_metrics is not Trainer.compute_metrics
