"""meta_program.py FOLDER HOW [WIDTH]: trains a model that is made on the meta device, as one of several processes, or
alone as an ordinary one; leaves FOLDER/HOW-PROCESS.pt, or FOLDER/HOW.pt.

HOW: "files" takes the weights of FOLDER/start, the others draw them. All save what they trained to FOLDER/HOW-out.
"divided": one stage, whose work all devices share.
"""

import os
import pathlib
import re
import sys

import abele
import poptorch
import torch
import torch.nn.functional as F
from abele.wrapping import without_pull

STAGES, ACCUMULATION, CALLS, SEED = 4, 4, 2, 11


class Net(torch.nn.Module):
    """Four stages; the last one reads the first one's weight."""

    is_divided = False

    def __init__(self, width, depth=3):
        super().__init__()
        self.embed = torch.nn.Embedding(13, width)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth))) for _ in range(STAGES)
        )
        self.norm = torch.nn.BatchNorm1d(width)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, tokens, target):
        x = None
        for stage, block in enumerate(self.blocks):
            poptorch.Block.start(str(stage), ipu_id=0 if self.is_divided else stage)
            x = self.embed(tokens) if stage == 0 else x
            x = torch.tanh(block(x))
        loss = F.cross_entropy(F.linear(self.norm(x), self.embed.weight), target)
        return poptorch.identity_loss(loss, reduction="mean")


def peak_bytes():
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", text)[1]) << 10


def forget_peak():
    """Returns: bytes that are in memory now."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text)[1]) << 10


def run(folder, how, width, process=None, processes=1):
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.threadsPerDevice(1)
    is_divided = how == "divided"
    if process is not None:
        devices = 1 if is_divided else STAGES // processes
        options.Distributed.configureProcessId(process, processes).devicesPerProcess(devices)
        options.tensorParallel(processes if is_divided else 1)
    before = forget_peak()
    with torch.device("cpu" if process is None else "meta"):
        model = Net(width)
    model.is_divided = is_divided
    executor = abele.trainingModel(model, options, poptorch.optim.AdamW(model.parameters(), lr=0.01))
    if how == "files":
        abele.load_weights(folder / "start", executor)
    else:
        abele.init_weights(executor, SEED)
    draw = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(CALLS):
        batch = [torch.randint(13, (2 * ACCUMULATION,), generator=draw) for _ in range(2)]
        losses.append(executor(*batch))
    abele.save_weights(folder / f"{how}-out", executor)
    peak = peak_bytes() - before
    whole = dict(abele.weights(executor)) if width < 100 or is_divided else {}
    executor.copyWeightsToHost()
    with without_pull():
        held = {name: value for name, value in executor.model.state_dict().items() if not value.is_meta}
    old = [name for name in whole if name in held and not torch.equal(held[name], whole[name])]
    abele.save_checkpoint(folder / f"{how}-checkpoint", executor, step=CALLS)
    abele.load_checkpoint(folder / f"{how}-checkpoint", executor)
    peak_of_checkpoint = peak_bytes() - before
    report = executor.memoryReport()
    with without_pull():  # state_dict() refuses a part of a model otherwise
        state = executor.model.state_dict()
    return {
        "losses": losses,
        "whole": whole,
        "meta": [name for name, value in state.items() if value.is_meta],
        "old": old,
        "peak": peak,
        "peak_of_checkpoint": peak_of_checkpoint,
        "planned": [device["peak_bytes"] for device in report["devices"]],
        "state": {} if process is not None else {name: value.clone() for name, value in state.items()},
    }


if __name__ == "__main__":
    folder, how, width = pathlib.Path(sys.argv[1]), sys.argv[2], int((sys.argv[3:] or ["16"])[0])
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.save(run(folder, how, width, rank, count), folder / f"{how}-{rank}.pt")
