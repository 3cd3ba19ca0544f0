"""kills.py PROCESSES KILLS HOLD: trains in several processes and kills one of them in the middle, again and again.

HOLD: each process holds `replicas`, or one of the `stages` of one replica.

Prints a line a kill: the process that was killed, what each of the others said and its exit status, the seconds until
all of them had said it, and until the last of them had ended: the end of an interpreter takes a busy machine seconds.
"""

import functools
import os
import random
import sys
import time
from pathlib import Path

import poptorch
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import simulated
from forked import Forked, place_of
from ports import free_port

PROCESSES, KILLS, HAS_STAGES = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "stages"
LIMIT_S = 120  # beyond it a process hangs


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(max(2, PROCESSES)))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            if HAS_STAGES:
                poptorch.Block.start(str(index), ipu_id=index)
            x = torch.tanh(layer(x))
        return x, poptorch.identity_loss(x.square(), reduction="mean")


def train(rank, port, tell):
    """Trains until a process is gone. tell: takes a character a step, then what was heard."""
    os.environ.update(place_of(rank, PROCESSES, port))
    if os.environ.get("ABELE_DEVICE", "").startswith("simulated"):
        simulated.load()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Net()
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(rank, PROCESSES)
    if HAS_STAGES:
        opts.Distributed.devicesPerProcess(1)
        opts.Training.gradientAccumulation(2)
        opts.enforcePipelineMinimum(False)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1e-3))
    x = torch.randn(8, 32)
    try:
        while True:
            executor(x)
            tell(".")
    except poptorch.Error as error:
        tell(error.code)


def kill(victim, after):
    """Kills a process after its step `after`. Returns what the others said, and how long they took to say it and to
    end."""
    port, processes = free_port(), []
    for rank in range(PROCESSES):
        processes.append(Forked(functools.partial(train, rank, port), processes, LIMIT_S))
    while len(processes[victim].text()) < after and processes[victim].read():
        pass
    processes[victim].kill()
    begin = time.monotonic()
    others = [process for rank, process in enumerate(processes) if rank != victim]
    for process in others:
        process.read_all()
    heard = time.monotonic() - begin
    said = [f"{process.text().lstrip('.') or 'nothing'}:{process.status()}" for process in others]
    took = time.monotonic() - begin
    processes[victim].status()
    return said, heard, took


def main():
    chosen = random.Random(5)
    for _ in range(KILLS):
        victim = chosen.randrange(PROCESSES)
        others, heard, took = kill(victim, chosen.randrange(1, 40))
        print(victim, ",".join(others), f"{heard:.3f} {took:.3f}", flush=True)


main()
