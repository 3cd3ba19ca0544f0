"""Which options still count for a program that is compiled already.

Source: spec executor.md, section 7.1 (load).
"""

import copy
import functools

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


def _restore(now, then, assign, erase):
    """Gives what is part of a program its value of then. Returns: the names of what changed."""
    changed = [name for name in sorted((now.keys() | then.keys()) - _RUN_TIME) if now.get(name) != then.get(name)]
    for name in changed:
        if name in then:
            assign(name, then[name])
        else:
            erase(name)
    return changed


def keepCompiled(options, compiled):
    """Gives all options that are part of a program their values at its compilation again; a warning names them.

    Args:
        options: changed in place.
        compiled: the options that the program was compiled with.
    """
    ignored = []
    for group in ("", "Training", "Precision", "TensorLocations"):
        mine, original = (getattr(each, group) if group else each for each in (options, compiled))
        assign = functools.partial(mine._values.assign, mine._group)
        ignored += _restore(mine._asDict(), original._asDict(), assign, mine._values.erase)
    mine, original = options._Popart.options, copy.deepcopy(compiled._Popart.options)
    ignored += _restore(dict(mine), original, mine.__setitem__, mine.__delitem__)
    if repr(options._execution_strategy) != repr(compiled._execution_strategy):
        ignored.append("the execution strategy")
        options._execution_strategy = copy.deepcopy(compiled._execution_strategy)
    if ignored:
        logger.warning("load(): ignored, since the program is compiled already: %s", ", ".join(ignored))
