"""The process group that connects the processes of a training. Docs: docs/replicas.md.

The native session makes it from the launcher's variables, or takes the one that is registered here: over the store of
the program's own torch.distributed group, where it has made one. Nothing here holds it, so that leaving it closes its
connections.
"""

import atexit
import datetime
import threading

from ._errors import userError
from ._native import core

_joined = {}  # by name in c10d's registry: (process, processes)


def join(process, processes, name="abele"):
    """Connects the native sessions of this process with those of the others, at its first call. All processes call it.

    Args:
        process: index of this one.
        processes: how many there are.
        name: of the group; that of the sessions is "abele".
    Raises:
        abele.Error: E0714, nothing says where the others are, or they do not come.
    """
    if name in _joined:
        return
    import torch.distributed as dist

    # Alive until the native side holds it: the registry does not.
    group = _registerOverStoreOf(dist, name, process, processes) if dist.is_initialized() else None
    make = (lambda own, *ends: _deviceGroup(own, processes, *ends)) if name == "abele" else None
    _interruptibly(lambda: core().joinProcesses(process, processes, name, make))
    del group
    if not _joined:
        atexit.register(core().leaveProcesses)
    _joined[name] = process, processes


def anyOf(value, name="abele"):
    """Has any process a value that is true? All of them ask, at the same place; a process that has joined no others is
    alone."""
    if name not in _joined:
        return bool(value)
    process, processes = _joined[name]
    return _interruptibly(lambda: core().anyOfProcesses(process, processes, name, bool(value)))


def _deviceGroup(process, processes, kind, first, second):
    """A group of two processes with the backend that the program's own group has for devices of a kind. All processes
    call it for each, in one order, as new_group asks for.

    Args:
        process, processes: this one, and how many there are.
        kind: of devices, as "cuda".
        first, second: processes of the group.
    Returns: (name in c10d's registry, ""), or ("", why there is none). A process outside of the group gets ("", "").
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return "", "the program has called no init_process_group"
    if (dist.get_rank(), dist.get_world_size()) != (process, processes):
        found = f"process {dist.get_rank()} of {dist.get_world_size()}"
        return "", f"its group of torch.distributed calls process {process} of {processes} {found}"
    names = dist.distributed_c10d.get_backend_config()
    backends = dist.distributed_c10d.BackendConfig(names).get_device_backend_map()
    # What serves the CPU as well moves messages through the host's memory.
    if backends.get(kind) in (None, backends.get("cpu")):
        return "", f"its group of torch.distributed has no backend of {kind} alone: {names}"
    timeout = datetime.timedelta(seconds=core().environmentInteger("ABELE_PROCESS_TIMEOUT", 1800))
    try:
        group = dist.new_group([first, second], timeout=timeout, backend=backends[kind])
    except Exception as error:  # a backend may throw anything
        return "", str(error).splitlines()[0]
    return (group.group_name if process in (first, second) else ""), ""


def _registerOverStoreOf(dist, name, process, processes):
    import torch

    timeout = datetime.timedelta(seconds=core().environmentInteger("ABELE_PROCESS_TIMEOUT", 1800))
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    try:
        backend = _interruptibly(lambda: dist.ProcessGroupGloo(store, process, processes, timeout))
    except (RuntimeError, dist.DistError) as error:
        raise userError(
            "E0714",
            f"process {process} of {processes} does not find the others",
            found=str(error).splitlines()[0],
            expected="all processes within ABELE_PROCESS_TIMEOUT seconds",
            remedy="let all of them join the program's own group before they train",
        ) from error
    group = dist.ProcessGroup(store, process, processes)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    torch._C._distributed_c10d._register_process_group(name, group)
    return group


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
