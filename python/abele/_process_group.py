"""The process group that connects the processes of a training. Docs: docs/replicas.md.

The native session makes the group from the launcher's variables, or takes the one registered here. That one uses the
store of the program's own torch.distributed group, if the program has made one. This module does not hold the group, so
that leaving it closes its connections.
"""

import atexit
import concurrent.futures
import datetime
import threading

from ._errors import user_error
from ._native import core

_joined = {}  # by name in c10d's registry: (process, processes)


def join(process, processes, name="abele"):
    """Connects the native sessions of this process with those of the others at the first call. All processes call it.

    Args:
        process: index of this one.
        processes: number of all.
        name: of the group; "abele" is the sessions' group.
    Raises:
        abele.Error: E0714 if no variable has the address of the others, or if they do not connect.
    """
    if name in _joined:
        return
    import torch.distributed as dist

    # Keeps the group alive until the native side holds it, because the registry does not.
    group = _register_over_store_of(dist, name, process, processes) if dist.is_initialized() else None
    make = (lambda own, *ends: _device_group(own, processes, *ends)) if name == "abele" else None
    _interruptibly(lambda: core().joinProcesses(process, processes, name, make))
    del group
    if not _joined:
        atexit.register(core().leaveProcesses)
    _joined[name] = process, processes


def any_of(value):
    """True if the value of any process is true. All processes call it at the same place. A process that has not joined
    others is alone."""
    if "abele" not in _joined:
        return bool(value)
    process, processes = _joined["abele"]
    return _interruptibly(lambda: core().anyOfProcesses(process, processes, "abele", bool(value)))


def _device_group(process, processes, kind, first, second):
    """A group of two processes with the backend of the program's own group for devices of a kind. As new_group
    requires, all processes call it for each pair in the same order.

    Args:
        process, processes: index of this one, and number of all.
        kind: of devices, such as "cuda".
        first, second: processes of the group.
    Returns: (name in c10d's registry, ""), or ("", reason for no group). A process outside of the group gets ("", "").
    """
    import torch.distributed as dist

    if not dist.is_initialized():
        return "", "the program has called no init_process_group"
    if (dist.get_rank(), dist.get_world_size()) != (process, processes):
        found = f"process {dist.get_rank()} of {dist.get_world_size()}"
        return "", f"its group of torch.distributed calls process {process} of {processes} {found}"
    names = dist.distributed_c10d.get_backend_config()
    backends = dist.distributed_c10d.BackendConfig(names).get_device_backend_map()
    # A backend that also serves the CPU moves messages through the host's memory.
    if backends.get(kind) in (None, backends.get("cpu")):
        return "", f"its group of torch.distributed has no backend of {kind} alone: {names}"
    timeout = datetime.timedelta(seconds=core().environmentInteger("ABELE_PROCESS_TIMEOUT", 1800))
    try:
        group = dist.new_group([first, second], timeout=timeout, backend=backends[kind])
    except Exception as error:  # a backend may throw anything
        return "", str(error).splitlines()[0]
    return (group.group_name if process in (first, second) else ""), ""


def _register_over_store_of(dist, name, process, processes):
    import torch

    timeout = datetime.timedelta(seconds=core().environmentInteger("ABELE_PROCESS_TIMEOUT", 1800))
    store = dist.PrefixStore(name, dist.distributed_c10d._get_default_store())
    try:
        backend = _interruptibly(lambda: dist.ProcessGroupGloo(store, process, processes, timeout))
    except (RuntimeError, dist.DistError) as error:
        raise user_error(
            "E0714",
            f"process {process} of {processes} cannot connect to the others",
            found=str(error).splitlines()[0],
            expected="all processes within ABELE_PROCESS_TIMEOUT seconds",
            remedy="let all of them join the program's own group before they train",
        ) from error
    group = dist.ProcessGroup(store, process, processes)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    torch._C._distributed_c10d._register_process_group(name, group)
    return group


def _interruptibly(wait):
    """Returns the result of wait(). Ctrl-C ends this call; wait() then runs on another thread until its timeout."""
    done = concurrent.futures.Future()

    def work():
        try:
            done.set_result(wait())
        except Exception as error:
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return done.result()
