"""The simulated accelerator for Python tests: loads it once, and asks it for missing waits."""

import ctypes
import functools
import os
import pathlib
import sys
import types

import torch

_ROOT = pathlib.Path(__file__).parent.parent.parent


def _module(library):
    """What torch asks of torch.<device>."""
    module = types.ModuleType("torch.simulated")
    module.is_available = module.is_initialized = lambda: True
    module._is_in_bad_fork = lambda: False
    module._lazy_init = lambda: None
    module.device_count = lambda: 4
    module.current_device = torch.accelerator.current_device_index
    module.manual_seed_all = lambda value: library.simulated_seed(ctypes.c_uint64(value))
    return module


def _build():
    return pathlib.Path(os.environ.get("ABELE_BUILD_DIR", _ROOT / "build" / "dev"))


@functools.cache
def load():
    """Registers the device "simulated" with torch. Returns the library."""
    path = str(_build() / "test" / "libsimulated_accelerator.so")
    torch.ops.load_library(path)
    library = ctypes.CDLL(path)
    torch._register_device_module("simulated", _module(library))
    library.simulated_jobs.restype = ctypes.c_int64
    library.simulated_host_waits.restype = ctypes.c_int64
    library.simulated_captures.restype = library.simulated_replays.restype = ctypes.c_int64
    library.simulated_messages.restype = ctypes.c_int64
    library.simulated_take_findings.restype = ctypes.c_int64
    return library


def seed(value):
    load().simulated_seed(ctypes.c_uint64(value))


def set_delays(value):
    load().simulated_set_delays(ctypes.c_uint64(value))


def take_findings():
    """Accesses since the last call that nothing orders, as lines."""
    text = ctypes.c_char_p()
    load().simulated_take_findings(ctypes.byref(text))
    return text.value.decode().splitlines()


def graphs():
    """Graphs that were captured and replays of them, since the process began."""
    return load().simulated_captures(), load().simulated_replays()


def messages():
    """Messages of torch.distributed that went from device to device, at either end, since the process began."""
    return load().simulated_messages()


# For init_process_group: a backend for simulated devices beside the processor's.
LINKS = "cpu:gloo,simulated:simulated_links"


def join_processes(backend):
    """init_process_group of a program that registers such a backend."""
    import torch.distributed as dist

    load()
    sys.path.insert(0, str(_build() / "test"))
    import simulated_links

    def made(store, rank, size, _timeout):
        return simulated_links.make(store, rank, size)

    dist.Backend.register_backend("simulated_links", made, devices=["simulated"])
    dist.init_process_group(backend)


def has_graphs():
    """Is torch's way to graphs of devices here? It came with 2.13."""
    return (pathlib.Path(torch.__file__).parent / "include" / "ATen" / "accelerator" / "Graph.h").exists()
