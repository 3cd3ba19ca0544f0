"""output_ranks.py FOLDER NAME...: a replica in several processes, whose results go where Distributed.outputRank says.

Leaves FOLDER/NAME-PROCESS.pt.
"""

import os
import sys

import abele
import poptorch
import torch
import torch.nn.functional as F
from stage_cases import ROWS, WIDTH, Case

ACCUMULATION, CALLS = 3, 2
RANKS = ("all", "first", "last", "owner")
SUMS = {"sums": "training", "predicted_sums": "inference", "replica_sums": "replicas", "spread_sums": "spread"}


class Halves(torch.nn.Module):
    """Two stages, each of which makes a result: one tensor goes forward between them, its gradient back."""

    def __init__(self):
        super().__init__()
        self.lower = torch.nn.Linear(WIDTH, WIDTH)
        self.upper = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, target):
        poptorch.Block.start("lower", ipu_id=0)
        early = torch.tanh(self.lower(x))
        poptorch.Block.start("upper", ipu_id=1)
        late = self.upper(early)
        return {"early": early, "late": late, "loss": poptorch.identity_loss(F.mse_loss(late, target), "mean")}


def options(processes, rank, mode=poptorch.OutputMode.All):
    opts = poptorch.Options().outputMode(mode)
    opts.enforcePipelineMinimum(False)
    opts.threadsPerDevice(1)
    if processes > 1:
        opts.Distributed.configureProcessId(int(os.environ["RANK"]), processes).devicesPerProcess(2 // processes)
        opts.Distributed.outputRank(rank)
    return opts


def halves(training, processes=1, rank="all", mode=poptorch.OutputMode.All):
    """Of each call its results, what this process sent, and what an anchor says of the first stage's weight."""
    torch.manual_seed(1)
    model, opts = Halves(), options(processes, rank, mode)
    draw = torch.Generator().manual_seed(3)
    batches = [[torch.randn(ACCUMULATION * ROWS, WIDTH, generator=draw) for _ in range(2)] for _ in range(CALLS)]
    if training:
        opts.Training.gradientAccumulation(ACCUMULATION)
        opts.anchorTensor("bias", "lower.bias")
        executor = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
    else:
        opts.deviceIterations(ACCUMULATION)
        executor = poptorch.inferenceModel(model.eval(), opts)
    results, sent, anchors = [], [], []
    for batch in batches:
        results.append(executor(*batch))
        sent.append(executor.report()["sent_bytes"])
        if training:
            try:
                anchors.append(executor.getAnchoredTensor("bias"))
            except poptorch.Error as error:
                anchors.append(str(error))
    executor.copyWeightsToHost()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    executor.destroy()
    return {"results": results, "sent": sent, "anchors": anchors, "weights": weights}


def replicas(rank, spread, mode=poptorch.OutputMode.All):
    """Each replica in two processes, or both in all of them."""

    def edit(opts):
        opts.Distributed.outputRank(rank)
        opts.outputMode(mode)

    return Case(replicas=2, devices=2, accumulation=ACCUMULATION, spread=spread, dropout=0.5, edit=edit)


class Counter(torch.nn.Module):
    """Forward writes its argument, which is the caller's in all processes."""

    def __init__(self):
        super().__init__()
        self.lower = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, count):
        poptorch.Block.start("lower", ipu_id=0)
        x = self.lower(x)
        poptorch.Block.start("upper", ipu_id=1)
        count.add_(1)
        return torch.tanh(x)


def written(processes, rank):
    torch.manual_seed(1)
    executor = abele.inferenceModel(Counter().eval(), options(processes, rank))
    count = torch.zeros(ROWS, 1)
    results = [executor(torch.ones(ROWS, WIDTH), count) for _ in range(CALLS)]
    return {"results": results, "count": count}


def main():
    folder, *names = sys.argv[1:]
    processes = int(os.environ["WORLD_SIZE"])
    for name in names:
        how, rank = name.split("-")
        mode = poptorch.OutputMode.Sum if how in SUMS else poptorch.OutputMode.All
        how = SUMS.get(how, how)
        if how == "written":
            found = written(processes, rank)
        elif how in ("training", "inference"):
            found = halves(how == "training", processes, rank, mode)
        else:
            found = replicas(rank, how == "spread", mode).together()
        torch.save(found, f"{folder}/{name}-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
