"""failing_stages.py NAME: a replica in two processes in which something is wrong. Prints what each process sees."""

import os
import sys
import time

import poptorch
import torch
import torch.nn.functional as F
from abele.wrapping import without_pull

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


class Tied(torch.nn.Module):
    """Both stages read the one weight."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        poptorch.Block.start("a", ipu_id=0)
        x = torch.tanh(self.layer(F.one_hot(x % WIDTH, WIDTH).float()))
        poptorch.Block.start("b", ipu_id=1)
        y = self.layer(x)
        return y, poptorch.identity_loss(F.mse_loss(y, torch.zeros_like(y)), reduction="mean")


class Dropping(Net):
    """Backward of its first stage is long: the process of the last stage compares first."""

    def forward(self, x):
        poptorch.Block.start("a", ipu_id=0)
        x = self.table(x)
        long = x.sum() * torch.eye(1500)
        x = F.dropout(x + 0 * torch.linalg.matrix_power(long, 16).sum())
        poptorch.Block.start("b", ipu_id=1)
        y = self.head(x)
        return y, poptorch.identity_loss(F.mse_loss(y, torch.zeros_like(y)), reduction="mean")


def training(
    width=WIDTH,
    processes=2,
    devices=1,
    lr=0.1,
    seed=1,
    draws=5,
    model=None,
    shared=False,
    momentum=0.0,
    to="all",
    group=1,
):
    torch.manual_seed(seed)
    model = model() if model else Net(width)
    opts = poptorch.Options().autoRoundNumIPUs(True).randomSeed(draws)
    opts.Training.gradientAccumulation(3)
    opts.enforcePipelineMinimum(False)
    opts.shareWeights(shared)
    opts.Distributed.configureProcessId(RANK, processes).devicesPerProcess(devices).outputRank(to)
    opts.tensorParallel(group)
    return model, poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum))


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


def other_trials():
    if RANK == 1:
        os.environ["ABELE_SHARD_TRIALS"] = "fail"  # as on a processor whose kernels round otherwise
    _, executor = training(devices=2, group=2)
    attempt(lambda: executor(GOOD))


def other_output_rank():
    _, executor = training(to="last" if RANK == 1 else "first")
    attempt(lambda: executor(GOOD))


def ends_where_the_other_has_no_results():
    _, executor = training(to="last")
    executor(GOOD)
    if RANK == 1:
        os._exit(0)
    attempt(lambda: executor(GOOD))


def other_number_of_processes():
    _, executor = training(devices=2)
    attempt(lambda: executor(GOOD))


def other_batch():
    _, executor = training()
    executor(GOOD)
    attempt(lambda: executor(GOOD * (1 + RANK)))


def other_learning_rate():
    _, executor = training(lr=0.1 + RANK)
    attempt(lambda: executor(GOOD))


def other_seed_of_dropout():
    _, executor = training(draws=5 + RANK, model=Dropping)
    attempt(lambda: executor(GOOD))


def other_tied_weights():
    _, executor = training(seed=1 + RANK, model=Tied)
    attempt(lambda: executor(GOOD))


def lone_reader():
    """One process reads the weights, the other goes on training."""
    _, executor = training()
    executor(GOOD)
    attempt(executor.copyWeightsToHost if RANK == 0 else lambda: executor(GOOD))


def lone_reader_at_the_end():
    """One process reads the weights, the other ends."""
    _, executor = training()
    executor(GOOD)
    if RANK == 1:
        os._exit(0)
    attempt(executor.copyWeightsToHost)


def readers_of_other_things():
    _, executor = training(momentum=0.9)
    executor(GOOD)
    session = executor._executable.session
    attempt(executor.copyWeightsToHost if RANK == 0 else session.optimizerState)
    attempt(lambda: executor(GOOD))


class Checked(torch.autograd.Function):
    """Its backward fails where the matrix is not positive definite."""

    @staticmethod
    def forward(ctx, x, matrix):
        ctx.save_for_backward(matrix)
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 0 * torch.linalg.cholesky(ctx.saved_tensors[0]).sum(), None


class Fragile(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(ROWS, ROWS)
        self.head = torch.nn.Linear(ROWS, 2)

    def forward(self, x):
        poptorch.Block.start("a", ipu_id=0)
        x = Checked.apply(self.body(x), x)
        poptorch.Block.start("b", ipu_id=1)
        y = self.head(x)
        return y, poptorch.identity_loss(F.mse_loss(y, torch.zeros_like(y)), reduction="mean")


def last_backward_fails():
    """That of the first stage, when the last stage has done all but its update. Devices work in the models' weights."""
    model, executor = training(model=Fragile, shared=True)
    executor(torch.eye(ROWS).repeat(3, 1))
    before = [tensor.detach().clone() for tensor in model.parameters()]
    attempt(lambda: executor(torch.cat([torch.eye(ROWS), torch.eye(ROWS), -torch.eye(ROWS)])))
    with without_pull():  # the devices' own memory, as it is
        say(f"unchanged {all(map(torch.equal, model.parameters(), before))}")


globals()[sys.argv[1]]()
