"""What the devices honour: from Options to the native ProgramOptions, and errors for what would change behaviour.

The column "device" of src/options/options.json says the same for users.
"""

import itertools
import os

import torch

from . import _environment, _process_group, enums, strategies
from ._errors import userError
from ._locations import setLocations
from ._logging import logger
from ._native import core


def _popart(options, name):
    return options._Popart.options.get(name)


def requireSupported(options):
    """Raises poptorch.Error for options that are not honoured and would change results or errors.

    Args:
        options: validated Options.
    """
    options._Popart.validate()
    _environment.checkAtCompile(options)
    logger.debug("options: %r", options)
    limit = options.max_repeat_logs
    core().setMaxRepeatedLogs(limit if limit < 2**63 else -1)
    _environment.engineOptions(options)  # checks the variable


def _positive(name, value):
    if value < 1:
        raise userError("E0702", "option-value", f"{name} is {value}", expected=f"{name} >= 1")
    return value


def commGroup(comm_group_type):
    """The native form of a CommGroupType."""
    return getattr(core().CommGroup, enums.CommGroupType(comm_group_type).name)


def toProgramOptions(options, *, training, policy):
    """The native options of one compiled program."""
    result = core().ProgramOptions()
    result.training = training
    result.device_iterations = _positive("deviceIterations", options.device_iterations)
    result.gradient_accumulation = _positive("gradientAccumulation", options.Training.gradient_accumulation)
    result.replicas = _positive("replicationFactor", options.replication_factor)
    result.input_group_size = options.input_group_size
    result.input_grouping = commGroup(options.input_cgt)
    processes = options.Distributed.numProcesses
    result.setProcesses(options.Distributed.processId, processes, _process_group.localProcesses(processes))
    result.broadcast_buffers = options.broadcast_buffers
    result.trusts_reads = options.trust_reads
    result.mean_reduction = options.Training.accumulation_and_replication_reduction_type == enums.ReductionType.Mean
    result.output_mode = getattr(core().OutputMode, enums.OutputMode(options.output_mode).name)
    result.output_period = options.output_return_period
    strategy = options._execution_strategy
    pipelined = isinstance(strategy, strategies.PipelinedExecution)
    phased = isinstance(strategy, strategies._PhasedStrategy)
    result.strategy = core().Strategy.Pipelined if pipelined else core().Strategy.Sharded
    # PopART's own setting asks for recomputation under every strategy.
    result.recompute = bool(_popart(options, "autoRecomputation"))
    if pipelined:
        result.schedule = strategy._schedule or "default"
        result.costs = strategy._costs
        result.recompute |= strategy._recompute is True
        result.recompute_to_fit = strategy._recompute == "fit"
    result.setStages(
        getattr(core().AutoStage, strategy._auto_stage.name),
        pipelined,
        [
            (list(stage.blocks), -1 if stage._ipu is None else stage._ipu, stage._phase_id if phased else -1)
            for stage in strategy._stages
        ],
        isinstance(strategy, strategies.ParallelPhasedExecution),
        _splitDevices(options, policy),
    )
    setLocations(result, options)
    if options.exists("device_memory_limit"):
        limits = options.device_memory_limit
        limits = limits if isinstance(limits, dict) else {-1: limits}
        result.setDeviceMemory(limits.get(-1, -1), {device: limit for device, limit in limits.items() if device >= 0})
    result.enforce_pipeline_minimum = not policy.short_pipelines and not _popart(options, "abele.allowShortPipeline")
    share = _popart(options, "abele.shareWeights")
    result.share_weights = policy.shares_weights if share is None else share
    threads = _popart(options, "abele.threadsPerDevice") or 0
    if threads < 0:
        raise userError("E0702", "option-value", f"abele.threadsPerDevice is {threads}", expected="0 or more threads")
    result.threads_per_device = threads
    result.floating_point_exceptions = bool(_popart(options, "enableFloatingPointChecks"))
    result.stochastic_rounding = bool(_popart(options, "enableStochasticRounding"))
    _setLossScaling(result, options)
    result.updatable_buffers = list(_popart(options, "updatableNamedBuffers") or ())
    result.synthetic_data = bool(_popart(options, "syntheticDataMode"))
    _setCache(result, options)
    for short_name, (long_name, as_model, mode, period) in options.anchored_tensors.items():
        if as_model:
            mode, period = options.output_mode, options.output_return_period
        mode = getattr(core().OutputMode, enums.OutputMode(mode).name)
        result.addAnchor(short_name, long_name, mode, max(period, 1))
    if options.exists("random_seed"):
        result.has_seed = True
        result.seed = options.random_seed % 2**64
    result.initializers_path = _popart(options, "saveInitializersToFile") or ""
    settings = {
        # Paths may hold bytes that are no text.
        name: value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") if isinstance(value, str) else value
        for name, value in options._Popart.options.items()
    }
    for name in core().requireAvailable(settings, result):
        logger.info("option %s is a hint: it has no effect on what the devices do", name)
    return result


def _splitDevices(options, policy):
    """Devices that an AutoSplit is for; 0: as many as there are cores."""
    devices = getattr(options._execution_strategy, "_devices", None)
    return policy.splitDevices(options) if devices is None else devices


def _setLossScaling(result, options):
    """Automatic loss scaling and its settings."""
    setting = lambda name: _popart(options, f"automaticLossScalingSettings.{name}")  # noqa: E731
    result.auto_loss_scaling = bool(setting("enabled"))
    edge = setting("binEdgeLocation")
    if edge is not None:
        if not 0 < edge < 1:
            raise userError("E0702", "option-value", f"binEdgeLocation is {edge}", expected="between 0 and 1")
        result.loss_scale_edge = edge
    share = setting("thresholdUpperCountProportion")
    if share is not None:
        if not 0 <= share <= 1:
            raise userError(
                "E0702", "option-value", f"thresholdUpperCountProportion is {share}", expected="between 0 and 1"
            )
        result.loss_scale_threshold = share
    period = setting("updatePeriod")
    if period is not None:
        result.loss_scale_period = _positive("updatePeriod", period)


def _setCache(result, options):
    """Where compiled executables are kept."""
    path = _popart(options, "cachePath") if _popart(options, "enableEngineCaching") is not False else None
    several = options.Distributed.numProcesses > 1
    if path and _environment.usesSimulator(options):
        logger.warning("enableExecutableCaching: executables for the simulator are not cached")
    elif path:
        result.cache_path = os.fsencode(path)
        result.cache_lock = several
    elif several:
        logger.warning("every process compiles: opts.enableExecutableCaching(path) lets only the first one do it")


def requireShapes(model):
    """Raises poptorch.Error for parameters and buffers of lazy modules that no call has given a shape yet."""
    lazy = [
        name
        for name, value in itertools.chain(model.named_parameters(), model.named_buffers())
        if torch.nn.parameter.is_lazy(value)
    ]
    if lazy:
        raise userError(
            "E0708",
            "arguments",
            f"{', '.join(lazy)} of the model {'has' if len(lazy) == 1 else 'have'} no shape yet",
            expected="tensors of known shapes",
            remedy="call the model once with an example of its inputs before it is wrapped",
        )
