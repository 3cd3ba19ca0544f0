"""Other ways to train a workload, which benchmarks put beside ours. A kind is a file of this folder."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Peer:
    """Attributes:
    build: makes the system of a workload in one of its processes. Its step(x, target) returns the losses that the
        process has, one a micro-batch; those of all processes, by rank, are the step's.
    kind: the file that it comes from.
    processes: of one thread each where there are several, which find each other by torchrun's variables; one process
        has a thread for each core.
    """

    build: Callable
    kind: str
    processes: int = 1


PEERS = {}
_loading = ""  # the file that registers its peers now


def peer(name, processes=1):
    """Registers a function or class that builds a system from a workload."""

    def register(build):
        PEERS[name] = Peer(build, _loading, processes)
        return build

    return register


for _, _loading, _ in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_loading}")
