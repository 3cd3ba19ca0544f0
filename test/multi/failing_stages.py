"""failing_stages.py NAME: a replica in two processes in which something is wrong. Prints what each process sees."""

import os
import sys
import time

import poptorch
import torch
import torch.nn.functional as F

RANK = int(os.environ["RANK"])
ROWS, WIDTH = 4, 8


class Net(torch.nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.table = torch.nn.Embedding(10, width)
        self.head = torch.nn.Linear(width, 2)

    def forward(self, x):
        poptorch.Block.start("a", ipu_id=0)
        x = self.table(x)
        poptorch.Block.start("b", ipu_id=1)
        y = self.head(x)
        return y, poptorch.identity_loss(F.mse_loss(y, torch.zeros_like(y)), reduction="mean")


def training(width=WIDTH, processes=2, devices=1):
    torch.manual_seed(1)
    model = Net(width)
    opts = poptorch.Options().autoRoundNumIPUs(True)
    opts.Training.gradientAccumulation(3)
    opts._Popart.set("abele.allowShortPipeline", True)
    opts.Distributed.configureProcessId(RANK, processes).devicesPerProcess(devices)
    return model, poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))


GOOD = torch.ones(3 * ROWS, dtype=torch.long)
BAD = torch.full((3 * ROWS,), 20)  # no row of the table: the first stage fails


def say(text):
    """One write, so that lines of two processes do not mix."""
    sys.stdout.write(f"{RANK}: {text}\n")
    sys.stdout.flush()


def attempt(call):
    """Prints the error of the call, in one line, and whether it came within two seconds."""
    begin = time.monotonic()
    try:
        call()
        say("no error")
    except poptorch.Error as error:
        in_time = time.monotonic() - begin < 2
        say(f"{'in time' if in_time else 'late'} " + " ".join(str(error).split()))


def ends():
    _, executor = training()
    executor(GOOD)
    if RANK == 1:
        os._exit(0)
    attempt(lambda: executor(GOOD))
    attempt(lambda: executor(GOOD))


def step_fails():
    _, executor = training()
    executor(GOOD)
    attempt(lambda: executor(BAD))


def other_program():
    _, executor = training(width=WIDTH + RANK)
    attempt(lambda: executor(GOOD))


def other_number_of_processes():
    _, executor = training(devices=2)
    attempt(lambda: executor(GOOD))


globals()[sys.argv[1]]()
