"""The place of this process among those that a launcher started. Of Abele there is one process so far.

A launcher for PopDist sets POPDIST_NUM_TOTAL_REPLICAS and its companions; without them everything is single process.
Source: spec clients.md, item 21; environment.md, section 9.
"""

import os

_TOTAL = "POPDIST_NUM_TOTAL_REPLICAS"
_LOCAL = "POPDIST_NUM_LOCAL_REPLICAS"
_OFFSET = "POPDIST_REPLICA_INDEX_OFFSET"
_IPUS = "POPDIST_NUM_IPUS_PER_REPLICA"


def _integer(name, default):
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise RuntimeError(f"environment variable {name} is {text!r}, expected an integer") from None


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


def checkSingleProcess():
    """Raises RuntimeError if the launcher started several processes."""
    if getNumInstances() > 1:
        raise RuntimeError(
            f"a launcher started {getNumInstances()} processes ({_TOTAL}={getNumTotalReplicas()}, "
            f"{_LOCAL}={getNumLocalReplicas()}); this version runs the replicas of one process: start the program "
            f"without the launcher, or with {_LOCAL} equal to {_TOTAL}"
        )


def init():
    """Prepares this process to work with the others.

    Raises:
        RuntimeError: there are others.
    """
    checkSingleProcess()


__all__ = [
    "checkSingleProcess",
    "getInstanceIndex",
    "getNumInstances",
    "getNumIpusPerReplica",
    "getNumLocalReplicas",
    "getNumTotalReplicas",
    "getReplicaIndexOffset",
    "init",
    "isPopdistEnvSet",
]
