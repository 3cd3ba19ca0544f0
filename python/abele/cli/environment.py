"""`abele env`: describes this machine, and says whether a pipeline trains here. --measure: how fast its links are."""

import argparse
import importlib.metadata
import os
import subprocess
import sys
import time

# Libraries whose programs Abele runs.
_PACKAGES = ("numpy", "keras", "transformers", "lightning", "pytorch-lightning", "timm", "optimum-graphcore")


def _package_versions():
    for name in _PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _rows():
    """(name, value). The value is an exception if it cannot be loaded."""
    import abele
    from abele._version import POPTORCH_VERSION

    yield "abele", f"{abele.__version__} (poptorch {POPTORCH_VERSION}), {abele.__path__[0]}"
    yield "python", f"{sys.version.split()[0]}, {sys.executable}"
    yield "packages", ", ".join(_package_versions()) or "none of those that Abele knows"
    import torch

    yield "torch", torch.__version__
    from abele._native import core

    for name, value in core().environment():
        if name != "abele":
            yield name, value


def _train():
    """Runs a step of two stages on two devices. Returns: whether it changed a weight."""
    import torch

    import abele

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = abele.BeginBlock(torch.nn.Linear(4, 4), "first", ipu_id=0)
            self.second = abele.BeginBlock(torch.nn.Linear(4, 2), "second", ipu_id=1)

        def forward(self, x, target):
            out = self.second(self.first(x))
            return out, torch.nn.functional.mse_loss(out, target)

    net = Net()
    before = net.first.weight.detach().clone()
    options = abele.Options()
    options.showCompilationProgressBar(False).Training.gradientAccumulation(2)
    step = abele.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.01))
    step(torch.ones(4, 4), torch.ones(4, 2))
    step.copyWeightsToHost()
    return not torch.equal(before, net.first.weight)


def _measure():
    """Measures the links between the processes of a launcher, or between two of this host. Returns: exit status."""
    if "WORLD_SIZE" not in os.environ and "OMPI_COMM_WORLD_SIZE" not in os.environ:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        env = {"OMP_NUM_THREADS": "1", **os.environ}  # or torchrun says that it sets this
        return subprocess.call([sys.executable, *launcher, "-m", __spec__.name, "--measure"], env=env)
    import abele
    from abele._native import core

    try:
        core().measureLinks()
    except abele.Error as error:
        _print("FAILS", error)
        return 1
    if os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "0":
        _print("links", dict(core().environment())["links"])
    core().leaveProcesses()
    return 0


def _print(name, value):
    print(f"{name:<13} {value}", flush=True)


def main(arguments=None):
    """The console script. Returns its exit status: 1 if a small pipeline does not train."""
    parser = argparse.ArgumentParser(prog="abele env", description=__doc__.split(": ", 1)[1])
    parser.add_argument(
        "--measure",
        action="store_true",
        help="measure the links between processes and accelerators, and write the machine file that compilations read",
    )
    if parser.parse_args(arguments).measure:
        return _measure()
    begin = time.perf_counter()
    try:
        for row in _rows():
            _print(*row)
        failure = None if _train() else "a step changed no weight"
    except Exception as error:  # any failure: the rows above help to find the cause
        failure = f"{type(error).__name__}: {error}"
    if failure is not None:
        _print("FAILS", f"a pipeline of two stages: {failure}")
        return 1
    _print("works", f"a pipeline of two stages trains ({time.perf_counter() - begin:.1f} s with all imports)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
