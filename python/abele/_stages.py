"""Options of a pipeline from two numbers, which programs of other libraries give: devices and micro-batches."""

from .enums import AutoStage
from .options import Options
from .strategies import PipelinedExecution


def staged_options(options, devices, micro_batches):
    """A copy of the options with this number of stages, and of micro-batches for an update.

    Args:
        options: None: the defaults.
        devices: number of stages to cut; None: use the model's blocks, or the strategy of the options.
    """
    result = Options() if options is None else options.clone()
    if devices is not None:
        result.setExecutionStrategy(PipelinedExecution(AutoStage.AutoSplit).devices(devices))
    if micro_batches != 1:
        result.Training.gradientAccumulation(micro_batches)
    return result
