"""The process group that connects the processes of a training. Docs: docs/replicas.md.

The engine is torch.distributed's own: its store for the rendezvous, Gloo for the transfers. The native session takes
the group out of c10d's registry; nothing here holds it, so that leaving it closes its connections.
"""

import atexit
import datetime
import os
import threading

from . import _environment
from ._errors import userError
from ._native import core

_NAME = "abele"  # in c10d's registry
_joined = []  # (process, processes) once this process has joined


def join(process, processes):
    """Connects the native sessions of this process with those of the others, at its first call. All processes call it.

    Args:
        process: index of this one.
        processes: how many there are.
    Raises:
        poptorch.Error: E0714, nothing says where the others are, or they do not come.
    """
    if _joined:
        return
    import torch
    import torch.distributed as dist

    backend, store = connect(_NAME, process, processes)
    group = dist.ProcessGroup(store, process, processes)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    torch._C._distributed_c10d._register_process_group(_NAME, group)  # does not hold it
    core().joinProcesses(process, processes)
    _joined.append((process, processes))
    atexit.register(core().leaveProcesses)


def connect(name, process, processes):
    """A Gloo backend of this name that connects all processes, and its store.

    Raises:
        poptorch.Error: E0714.
    """
    import torch.distributed as dist

    timeout = datetime.timedelta(seconds=_environment.integer("ABELE_PROCESS_TIMEOUT", 1800))
    store = dist.PrefixStore(name, _storeFor(dist, process, processes, timeout))
    try:
        return _interruptibly(lambda: dist.ProcessGroupGloo(store, process, processes, timeout)), store
    except (RuntimeError, dist.DistError) as error:
        raise _cannotMeet(process, processes, error) from error


def _interruptibly(wait):
    """What wait() returns. Ctrl-C ends this call; the wait goes on, on a thread of its own, until its timeout."""
    done = []

    def work():
        try:
            done.append((wait(), None))
        except Exception as error:
            done.append((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    result, error = done[0]
    if error is not None:
        raise error
    return result


def _storeFor(dist, process, processes, timeout):
    """The store of the program's own group if it made one, else the one that the launcher's variables name."""
    if dist.is_initialized():
        return dist.distributed_c10d._get_default_store()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise userError(
            "E0714",
            "no-process-group",
            f"this is process {process} of {processes}, and nothing says where the others are",
            found=f"{' and '.join(missing)} not set",
            expected="the variables of a launcher",
            remedy="start the program with poprun or torchrun, or set MASTER_ADDR and MASTER_PORT in all processes",
        )
    try:
        return _interruptibly(lambda: next(dist.rendezvous("env://", process, processes, timeout=timeout))[0])
    except (RuntimeError, ValueError, dist.DistError) as error:
        raise _cannotMeet(process, processes, error) from error


def _cannotMeet(process, processes, error):
    return userError(
        "E0714",
        "no-process-group",
        f"process {process} of {processes} does not find the others",
        found=str(error).splitlines()[0],
        expected="all processes within ABELE_PROCESS_TIMEOUT seconds",
        remedy="start all of them with the same MASTER_ADDR and MASTER_PORT, each with an index of its own",
    )
