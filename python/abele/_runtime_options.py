"""Which options still count for a program that is compiled already.

Source: spec executor.md, section 7.1 (load).
"""

import copy

from ._logging import logger

# Devices, logs, folders, seeds, and which results of the program are returned. Everything else is part of the program.
_RUN_TIME = frozenset(
    (
        "output_mode",
        "output_return_period",
        "use_model",
        "ipu_id",
        "ipu_version",
        "connection_type",
        "sync_pattern",
        "auto_round_num_ipus",
        "log_dir",
        "max_repeat_logs",
        "model_name",
        "random_seed",
        "relax_optimizer_checks",
        "show_compilation_progress_bar",
        "source_location_excludes",
        # of _Popart
        "abele.threadsPerDevice",
        "cachePath",
        "enableEngineCaching",
        "engineOptions",
        "instrumentWithHardwareCycleCounter",
    )
)
_MISSING = object()


def keepCompiled(options, compiled):
    """Gives all options that are part of a program their values at its compilation again; a warning names them.

    Args:
        options: changed in place.
        compiled: the options that the program was compiled with.
    """
    ignored = []
    for mine, original in (
        (options._values, compiled._values),
        (options.Training._values, compiled.Training._values),
        (options.Precision._values, compiled.Precision._values),
        (options.TensorLocations._values, compiled.TensorLocations._values),
        (options._Popart.options, compiled._Popart.options),
    ):
        for name in sorted((mine.keys() | original.keys()) - _RUN_TIME):
            value = original.get(name, _MISSING)
            if mine.get(name, _MISSING) == value:
                continue
            ignored.append(name)
            if value is _MISSING:
                del mine[name]
            else:
                mine[name] = copy.deepcopy(value)
    if repr(options._execution_strategy) != repr(compiled._execution_strategy):
        ignored.append("the execution strategy")
        options._execution_strategy = copy.deepcopy(compiled._execution_strategy)
    if ignored:
        logger.warning("load(): ignored, since the program is compiled already: %s", ", ".join(ignored))
