"""peak_program.py FOLDER WAY: one of several processes, each with one stage of a model that is made on the meta device.
Leaves FOLDER/WAY-PROCESS.pt: how much of the model was in memory, by what was done.

WAY: "draw" draws the weights, trains and saves; "load" begins from the weights that it saved; "resume" from the
checkpoint, which it loads once more after some steps.
What is there before the large model counts as the base: a small model of the same kind has gone the same way in the
process, so that libraries, threads and connections are in memory.
"""

import os
import pathlib
import re
import sys

import abele
import poptorch
import torch
import torch.nn.functional as F

# Weights, gradients and two moments of three tensors of 16 MiB in each process.
WIDTH, DEPTH, SMALL = 2048, 3, 32
ACCUMULATION, CALLS, ROWS = 3, 2, 2


class Net(torch.nn.Module):
    """A block of linear layers for each stage."""

    def __init__(self, stages, width):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(DEPTH))) for _ in range(stages)
        )

    def forward(self, x, target):
        for stage, block in enumerate(self.blocks):
            poptorch.Block.start(str(stage), ipu_id=stage)
            x = torch.tanh(block(x))
        return poptorch.identity_loss(F.mse_loss(x, target), reduction="mean")


def _number(path, name):
    return int(re.search(rf"{name}:\s+(\d+) kB", pathlib.Path(path).read_text())[1]) << 10


def resident():
    return _number("/proc/self/status", "VmRSS")


def peak():
    """The most that was resident since the last call of forget()."""
    return _number("/proc/self/status", "VmHWM")


def forget():
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def _options(process, processes):
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.threadsPerDevice(1)
    options.enforcePipelineMinimum(False)
    options.Distributed.configureProcessId(process, processes).devicesPerProcess(1)
    return options


def run(folder, width, way, process, processes):
    """Returns: peak by what was done, and the plan's bytes of this process."""
    with torch.device("meta"):
        model = Net(processes, width)
    executor = abele.trainingModel(
        model, _options(process, processes), poptorch.optim.AdamW(model.parameters(), lr=1e-4)
    )
    peaks = {}

    def note(what):
        peaks[what] = peak()
        forget()

    draw = torch.Generator().manual_seed(1)
    batch = [torch.randn(ACCUMULATION * ROWS, width, generator=draw) for _ in range(2)]
    forget()
    if way == "draw":
        abele.init_weights(executor, 1)
    elif way == "load":
        abele.load_weights(folder / "weights", executor)
    else:
        abele.load_checkpoint(folder / "checkpoint", executor)
    executor.compile(*batch)
    note("compile")
    for _ in range(CALLS):
        executor(*batch)
    note("train")
    if way == "resume":
        abele.load_checkpoint(folder / "checkpoint", executor)
        note("load a checkpoint")
        executor(*batch)
        note("go on")
    if way == "draw":
        abele.save_weights(folder / "weights", executor)
        note("save weights")
        abele.save_checkpoint(folder / "checkpoint", executor, step=CALLS)
        note("save a checkpoint")
    return peaks, executor.memoryReport()["devices"][process]["peak_bytes"]


def main():
    folder, way = pathlib.Path(sys.argv[1]), sys.argv[2]
    process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    run(folder / "small", SMALL, way, process, processes)
    base = resident()
    peaks, planned = run(folder / "large", WIDTH, way, process, processes)
    taken = {what: bytes_ - base for what, bytes_ in peaks.items()}
    torch.save({"taken": taken, "planned": planned, "base": base}, folder / f"{way}-{process}.pt")


if __name__ == "__main__":
    main()
