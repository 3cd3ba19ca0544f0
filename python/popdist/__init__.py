"""The rank of this process among those that a launcher started.

poprun sets POPDIST_NUM_TOTAL_REPLICAS and similar variables; without them there is one process. Variables with an
impossible rank raise poptorch.Error, E0702.
Source: spec clients.md, item 21; environment.md, section 9.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, overload

from abele._native import core

_GROUP = "popdist"  # trainings have another group

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def isPopdistEnvSet() -> bool:
    """True if a launcher started this process."""
    return bool(core().popdist.isPopdistEnvSet())


def getNumTotalReplicas() -> int:
    """Replicas of all processes."""
    return int(core().popdist.getNumTotalReplicas())


def getNumLocalReplicas() -> int:
    """Replicas of this process."""
    return int(core().popdist.getNumLocalReplicas())


def getReplicaIndexOffset() -> int:
    """Index of this process's first replica."""
    return int(core().popdist.getReplicaIndexOffset())


def getNumIpusPerReplica() -> int:
    """Devices of one replica."""
    return int(core().popdist.getNumIpusPerReplica())


def getNumInstances() -> int:
    """Processes."""
    return int(core().popdist.getNumInstances())


def getInstanceIndex() -> int:
    """Index of this process."""
    return int(core().popdist.getInstanceIndex())


def _join(process: int, processes: int) -> None:
    from abele._process_group import join

    join(process, processes, _GROUP)


def init() -> None:
    """Connects this process with the others. All processes call it before any other function that communicates.

    Raises:
        poptorch.Error: E0714 if the others are not found.
    """
    if getNumInstances() > 1:
        _join(getInstanceIndex(), getNumInstances())


def synchronize(communicator_id: int = 0) -> None:
    """Waits until all processes have called this.

    Args:
        communicator_id: no effect, because there is one group.
    """
    if getNumInstances() > 1:
        _join(getInstanceIndex(), getNumInstances())
        core().synchronizeProcesses(getInstanceIndex(), getNumInstances(), _GROUP)


@overload
def execute_on_instances(
    instances: int | Iterable[int],
    function: Callable[_Parameters, _Result],
    *args: _Parameters.args,
    **kwargs: _Parameters.kwargs,
) -> _Result | None: ...
@overload
def execute_on_instances(
    instances: int | Iterable[int], function: None = None
) -> Callable[[Callable[_Parameters, _Result]], Callable[_Parameters, _Result | None]]: ...
def execute_on_instances(
    instances: int | Iterable[int], function: Callable[..., Any] | None = None, *args: Any, **kwargs: Any
) -> Any:
    """Calls a function in some processes only.

    Args:
        instances: index or indices of these processes.
        function: called as function(*args, **kwargs); None: a decorator for a function is returned.
    Returns:
        The function's result; None in the other processes.
    """
    chosen = {instances} if isinstance(instances, int) else set(instances)

    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) if getInstanceIndex() in chosen else None

    if function is not None:
        return call(function, *args, **kwargs)
    return lambda function: functools.wraps(function)(functools.partial(call, function))


__all__ = [
    "execute_on_instances",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
    "synchronize",
]
