"""A census of the things in a process that a library could change. Run by test_process.py.

Usage: census.py PACKAGE: prints, as JSON, what differs from the process before the import, by stage.
"""

import atexit
import copyreg
import faulthandler
import gc
import importlib
import json
import logging
import os
import pathlib
import signal
import sys
import threading
import warnings

import numpy
import torch

_NAMESPACES = (
    "builtins",
    "concurrent.futures.thread",
    "concurrent.futures.thread.ThreadPoolExecutor",
    "copy",
    "io",
    "logging",
    "multiprocessing.pool.ThreadPool",
    "numpy",
    "numpy.random",
    "os",
    "pickle",
    "random",
    "random.Random",
    "random.SystemRandom",
    "subprocess",
    "threading",
    "threading.Thread",
    "torch",
    "torch.Tensor",
    "torch._higher_order_ops",
    "torch._ops.HigherOrderOperator",
    "torch._tensor_str",
    "torch.autocast",
    "torch.autograd",
    "torch.autograd.Function",
    "torch.compiler",
    "torch.distributions.Distribution",
    "torch.jit",
    "torch.linalg",
    "torch.nn.Module",
    "torch.nn.Parameter",
    "torch.nn.RNNBase",
    "torch.nn.functional",
    "torch.nn.modules.batchnorm._BatchNorm",
    "torch.nn.modules.module",
    "torch.nn.modules.transformer",
    "torch.nn.utils",
    "torch.optim",
    "torch.optim.Optimizer",
    "torch.overrides",
    "torch.random",
    "torch.utils._pytree",
    "torch.utils.checkpoint",
    "torch.utils.data.DataLoader",
    "warnings",
)
_STATUS = ("VmLck", "VmPin", "SigBlk", "SigIgn", "SigCgt", "Seccomp", "NoNewPrivs")


def _named(path):
    """A module, or a member of one."""
    try:
        return importlib.import_module(path)
    except ImportError:
        home, _, name = path.rpartition(".")
        return getattr(_named(home), name)


def _members():
    """Functions and classes by name: an import makes modules members of packages."""
    found = {}
    for path in _NAMESPACES:
        for name, value in vars(_named(path)).items():
            if callable(value) or isinstance(value, property) or type(value).__name__ == "getset_descriptor":
                found[f"{path}.{name}"] = id(value)
    return found


def _status():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return {line.split(":")[0]: line.split(":")[1].strip() for line in lines if line.split(":")[0] in _STATUS}


def _signals():
    return {str(number): repr(signal.getsignal(number)) for number in signal.valid_signals()}


def _loggers():
    known = {"root": logging.root, **logging.root.manager.loggerDict}
    with_handlers = {name: one for name, one in known.items() if getattr(one, "handlers", None)}
    return {name: [repr(handler) for handler in one.handlers] for name, one in with_handlers.items()}


def _of_torch():
    module = torch.nn.modules.module
    return {
        "module hooks": [
            len(value or ()) for name, value in sorted(vars(module).items()) if name.startswith("_global_")
        ],
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": [torch.backends.mkldnn.enabled, str(torch.backends.mkldnn.matmul.fp32_precision)],
        "anomaly": torch.is_anomaly_enabled(),
        "random": torch.get_rng_state().sum().item(),
        "seed": torch.initial_seed(),
        "modes": [torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()],
        "sharing": torch.multiprocessing.get_sharing_strategy(),
    }


def take():
    """Name -> value, for everything."""
    sizes = {
        "gc": [len(gc.callbacks), gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()],
        "warnings": [repr(one) for one in warnings.filters],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "atexit": atexit._ncallbacks(),
        "faulthandler": faulthandler.is_enabled(),
        "paths": [sys.path, [repr(one) for one in sys.meta_path], [repr(one) for one in sys.path_hooks]],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval(), sorted(os.sched_getaffinity(0))],
        "reducers": sorted(repr(kind) for kind in copyreg.dispatch_table),
        "streams": [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
        "folder": os.getcwd(),
        "numpy": [numpy.geterr(), numpy.random.get_state()[1].tolist()[:3]],
        "tracing": [repr(sys.gettrace()), repr(sys.getprofile())],
        "logging": [logging.root.level, logging.root.manager.disable, logging.getLoggerClass().__name__],
    }
    hooks = {name: id(getattr(sys, name)) for name in ("excepthook", "unraisablehook", "displayhook", "breakpointhook")}
    hooks["threading.excepthook"] = id(threading.excepthook)
    parts = {"hooks": hooks, "environ": dict(os.environ), "status": _status(), "signals": _signals()}
    parts |= {"loggers": _loggers(), "torch": _of_torch(), "members": _members(), "process": sizes}
    return {f"{part} {name}": value for part, values in parts.items() for name, value in values.items()}


def difference(before, after):
    """The names of what is not as before."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _of_another_thread(function):
    results = []
    thread = threading.Thread(target=lambda: results.append(function()), name="census")
    thread.start()
    thread.join()
    return results[0]


class Net(torch.nn.Module):
    """Takes a census on another thread while it is captured."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(4)
        self.during = {}

    def forward(self, x):
        y = torch.nn.functional.dropout(self.norm(self.layer(x)), 0.1, self.training) * torch.rand(8)
        if self.training not in self.during:
            self.during[self.training] = _of_another_thread(take)
        return y, torch.nn.functional.mse_loss(y, x)


def main():
    """Import, capture, step, destroy."""
    package_name, found = sys.argv[1], {}
    torch.ones(300, 300) @ torch.ones(300, 300)  # torch's own threads
    torch.nn.functional.linear(torch.ones(1, 1), torch.ones(1, 1))
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(2, 4, 8)
    _of_another_thread(take)  # imports what it needs
    before = take()
    package = importlib.import_module(package_name)
    training = package.trainingModel
    found["import"] = difference(before, take())
    threads = [name for name in before if name == "process threads"]
    options = package.Options().showCompilationProgressBar(False)
    trained = training(net, options, optimizer)
    trained.compile(x)
    found["compile"] = difference(before, take())
    for _ in range(3):
        trained(x)
    found["step"] = difference(before, take())
    net.eval()
    inferred = package.inferenceModel(net, package.Options().showCompilationProgressBar(False))
    inferred(x)
    for mode, during in net.during.items():
        changed = difference(before, during)
        found["capture of a training" if mode else "capture of an inference"] = [
            name for name in changed if name not in threads
        ]
    inferred.destroy()
    trained.destroy()
    found["destroy"] = difference(before, take())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
