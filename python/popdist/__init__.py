"""The place of this process among those that a launcher started.

poprun sets POPDIST_NUM_TOTAL_REPLICAS and its companions; without them everything is single process.
Source: spec clients.md, item 21; environment.md, section 9.
"""

import functools
import os

from abele._errors import refused
from abele._native import core

_TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"
_LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
_OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
_IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"
_GROUP = "popdist"  # not that of the trainings


def _integer(name, default):
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise refused(RuntimeError, f"environment variable {name} is {text!r}, expected an integer") from None


def isPopdistEnvSet():
    """True if a launcher started this process."""
    return bool(os.environ.get(_TOTAL))


def getNumTotalReplicas():
    """Replicas of all processes."""
    return _integer(_TOTAL, 1)


def getNumLocalReplicas():
    """Replicas of this process."""
    return _integer(_LOCAL, getNumTotalReplicas())


def getReplicaIndexOffset():
    """Index of this process's first replica."""
    return _integer(_OFFSET, 0)


def getNumIpusPerReplica():
    """Devices of one replica."""
    return _integer(_IPUS, 1)


def getNumInstances():
    """Processes."""
    return max(1, getNumTotalReplicas() // max(1, getNumLocalReplicas()))


def getInstanceIndex():
    """Index of this process."""
    return getReplicaIndexOffset() // max(1, getNumLocalReplicas())


def _join(process, processes):
    from abele._process_group import join

    join(process, processes, _GROUP)


def init():
    """Connects this process with the others. All of them call it, before anything else of theirs that communicates.

    Raises:
        poptorch.Error: E0714, the others are not found.
    """
    if getNumInstances() > 1:
        _join(getInstanceIndex(), getNumInstances())


def synchronize(communicator_id=0):
    """Waits until all processes are here.

    Args:
        communicator_id: no effect: there is one group.
    """
    if getNumInstances() > 1:
        _join(getInstanceIndex(), getNumInstances())
        core().synchronizeProcesses(getInstanceIndex(), getNumInstances(), _GROUP)


def execute_on_instances(instances, function=None, *args, **kwargs):
    """Calls a function in some processes only.

    Args:
        instances: index or indices of these processes.
        function: called as function(*args, **kwargs); None: a decorator for a function is returned.
    Returns:
        What the function returns; None in the other processes.
    """
    chosen = {instances} if isinstance(instances, int) else set(instances)

    def call(function, *args, **kwargs):
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
