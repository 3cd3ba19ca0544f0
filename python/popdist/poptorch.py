"""Options of a program that a launcher started. Source: spec environment.md, section 9."""

from typing import Any, NoReturn

import poptorch
from abele._errors import refused
from poptorch import DataLoader
from poptorch.options import _DistributedOptions

import popdist


def _refuse(what: str) -> NoReturn:
    raise refused(RuntimeError, f"{what} is set by the launcher: remove the call, or use poptorch.Options")


class _LaunchedProcess(_DistributedOptions):
    """`opts.Distributed`, with the launcher's values."""

    def __init__(self, values: Any) -> None:
        super().__init__(values)
        self.set(distributed_process_id=popdist.getInstanceIndex(), num_distributed_processes=popdist.getNumInstances())

    def disable(self) -> NoReturn:
        """Not allowed here."""
        _refuse("Distributed.disable")

    def setEnvVarNames(self, var_num_processes: str, var_process_id: str) -> NoReturn:
        """Not allowed, because the launcher's variables set the values."""
        _refuse("Distributed.setEnvVarNames")

    def configureProcessId(self, process_id: int, num_processes: int) -> NoReturn:
        """Not allowed here."""
        _refuse("Distributed.configureProcessId")


class Options(poptorch.Options):
    """poptorch.Options with the processes and replicas that the launcher chose.

    Args:
        ipus_per_replica: devices of one replica; default: the launcher's number.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        super().__init__()
        self._ipus_per_replica = popdist.getNumIpusPerReplica() if ipus_per_replica is None else ipus_per_replica
        self._distributed = _LaunchedProcess(self._native)
        replicas, instances = popdist.getNumTotalReplicas(), popdist.getNumInstances()
        if replicas % instances == 0:
            super().replicationFactor(popdist.getNumLocalReplicas())
            return
        devices, left = divmod(self._ipus_per_replica * replicas, instances)
        if left:
            raise refused(
                RuntimeError,
                f"{self._ipus_per_replica * replicas} devices cannot be shared by {instances} instances: "
                "ipus_per_replica times replicas must be a multiple of the instances",
            )
        super().replicationFactor(replicas)  # in all processes together, because a replica is in several
        self._distributed.devicesPerProcess(devices)

    @property
    def ipus_per_replica(self) -> int:
        """Devices of one replica."""
        return self._ipus_per_replica

    def replicationFactor(self, replication_factor: int) -> NoReturn:
        """Not allowed here."""
        _refuse("replicationFactor")

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """Not allowed here."""
        _refuse("useIpuId")


__all__ = ["DataLoader", "Options"]
