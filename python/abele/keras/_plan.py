"""The plan of an execution, from a model's settings and the process's devices: replicas, micro-batches, checks.

Source: spec keras.md, section 2.
"""

import dataclasses
import logging

from .._errors import refused
from . import config
from .gradient_accumulation import GradientAccumulationReductionMethod
from .pipelining_ops import PipelineSchedule, RecomputationMode

logger = logging.getLogger("abele.keras")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a model runs. accumulation: micro-batches of a replica for each weight update."""

    stages: int
    devices: tuple  # by stage
    replicas: int
    accumulation: int
    is_mean: bool
    schedule: PipelineSchedule
    recompute: bool
    stochastic_rounding: bool
    exceptions: bool

    @property
    def group(self):
        """Micro-batches of all replicas for one weight update."""
        return self.accumulation * self.replicas


def plan_of(model_name, settings, stages, *, training):
    """The Plan of a model with this number of stages.

    Raises:
        ValueError: settings that do not fit the number of stages or the devices of this process.
        RuntimeError: this process only compiles.
    """
    configured = config.current()
    connection = configured.device_connection.type
    if connection in (config.DeviceConnectionType.NEVER, config.DeviceConnectionType.PRE_COMPILE):
        raise refused(
            RuntimeError,
            f"The model `{model_name}` cannot run: the devices are configured with device_connection.type = "
            f"DeviceConnectionType.{connection.name}.",
        )
    behaviour = configured.floating_point_behaviour
    mode = settings.recomputation
    chosen = mode not in (None, RecomputationMode.Auto)
    return Plan(
        stages=stages,
        devices=_devices(settings, stages),
        replicas=_replicas(model_name, settings, stages),
        accumulation=_accumulation(model_name, settings, stages) if training else 1,
        is_mean=settings.reduction != GradientAccumulationReductionMethod.SUM,
        schedule=settings.schedule,
        recompute=chosen or configured.allow_recompute,
        stochastic_rounding=behaviour.esr not in (False, config.StochasticRoundingBehaviour.OFF),
        exceptions=behaviour.inv or behaviour.div0 or behaviour.oflo or behaviour.set_all,
    )


def _devices(settings, stages):
    mapping = settings.device_mapping
    if stages == 1 and mapping is None:
        return (0,)
    if mapping is None:
        return tuple(range(stages))
    if len(mapping) != stages:
        raise refused(
            ValueError,
            f"The size of `device_mapping` ({len(mapping)}) does not match the number of pipeline stages of the model "
            f"({stages}).",
        )
    return tuple(mapping)


def _replicas(model_name, settings, stages):
    needed = max(_devices(settings, stages)) + 1
    selected = config.selected_devices()
    if selected is None:
        return 1
    if selected % needed:
        raise refused(
            ValueError,
            f"The model `{model_name}` needs {needed} IPUs for each replica, however {selected} are configured: "
            f"IPUConfig.auto_select_ipus has to be a multiple of {needed}.",
        )
    return selected // needed


def _accumulation(model_name, settings, stages):
    steps = settings.accumulation
    if stages == 1:
        return steps or 1
    if steps is None:
        raise refused(
            ValueError,
            f"The model `{model_name}` is pipelined, however `gradient_accumulation_steps_per_replica` has not been "
            "set. Call `set_pipelining_options(gradient_accumulation_steps_per_replica=...)` before training.",
        )
    schedule = settings.schedule
    divisor = {PipelineSchedule.Grouped: 2 * stages, PipelineSchedule.Interleaved: stages}.get(schedule, 1)
    if steps % divisor:
        twice = "two times " if schedule == PipelineSchedule.Grouped else ""
        raise refused(
            ValueError,
            f"`gradient_accumulation_steps_per_replica` ({steps}) needs to be divisible by {twice}the number of "
            f"pipeline stages ({stages}) when the pipeline schedule is {schedule}: a multiple of {divisor}.",
        )
    return steps


# Batches --------------------------------------------------------------------------------------------------------------
def _samples(x):
    """The number of samples of an array, or of a structure of arrays; None for other data."""
    from keras.src import tree

    leaves = [leaf for leaf in tree.flatten(x) if leaf is not None]
    if not leaves or not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") and len(leaf.shape) for leaf in leaves):
        return None
    return int(leaves[0].shape[0])


def batches_of(x, batch_size, steps, *, validation_split=0.0):
    """Number of batches of one epoch; None if it is unknown before the epoch's end.

    Raises:
        ValueError: arrays whose last batch would be smaller than the others.
    """
    samples = _samples(x)
    if samples is None:
        if steps is not None:
            return steps
        number = getattr(x, "num_batches", None)
        if number is None and hasattr(x, "__len__") and not isinstance(x, (list, tuple, dict)):
            number = len(x)
        return number
    if validation_split:
        samples = int(samples * (1.0 - validation_split))
    batch_size = 32 if batch_size is None else batch_size
    if steps is not None and steps * batch_size <= samples:
        return steps
    if samples % batch_size:
        raise refused(
            ValueError,
            f"The number of samples ({samples}) must be a multiple of the batch size ({batch_size}): all batches of a "
            "compiled model have one size. Leave out the rest, or choose another batch size.",
        )
    return samples // batch_size


def steps_per_execution(model_name, wanted, batches, plan, *, training, warn=True):
    """Micro-batches that a replica runs in one execution.

    Args:
        wanted: steps_per_execution of compile().
        batches: of the epoch; None: unknown.
    Raises:
        ValueError: the numbers do not divide each other.
    """
    steps = wanted
    if batches is not None and steps * plan.replicas > batches >= plan.replicas:
        steps = batches // plan.replicas
        (logger.warning if warn else logger.debug)(
            "The model `%s` has been configured with %d steps per execution, which is more than an epoch of %d steps "
            "has%s. The number of steps per execution is truncated to %d.",
            model_name,
            wanted,
            batches,
            f" for {plan.replicas} replicas" if plan.replicas > 1 else "",
            steps,
        )
    if training and steps % plan.accumulation:
        raise refused(
            ValueError,
            f"The model `{model_name}` has been configured with {steps} steps per execution, which is not a multiple "
            f"of `gradient_accumulation_steps_per_replica` ({plan.accumulation}). Set the `steps_per_execution` "
            f"argument passed to the `compile()` method to a multiple of {plan.accumulation}.",
        )
    if batches is not None and batches % (steps * plan.replicas):
        raise refused(
            ValueError,
            f"The number of batches of an epoch ({batches}) must be a multiple of steps_per_execution ({steps}) * "
            f"replicas ({plan.replicas}) = {steps * plan.replicas}: the data must divide into whole executions.",
        )
    return steps


def announce(model_name, steps, batch_size, plan, *, training):
    """Tells the user the resulting numbers of micro-batches and samples."""
    if steps == 1:
        logger.info(
            "The model `%s` has been configured with only %d steps per execution. Consider increasing the value for "
            "the `steps_per_execution` argument passed to the `compile()` method to improve performance.",
            model_name,
            steps,
        )
    if not training:
        return
    parts = []
    if plan.replicas > 1:
        parts.append(f"distributed across {plan.replicas} replicas")
    if plan.accumulation > 1:
        parts.append(f"accumulating {plan.accumulation} batches per optimizer step")
    if parts and batch_size is not None:
        logger.info("Training is %s, your effective batch size is %d.", " and ".join(parts), batch_size * plan.group)
