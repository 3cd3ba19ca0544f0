"""Strategies x stages x replicas x layouts: trainings in several processes, and alone in one.

As a program, process_matrix.py FOLDER CASE...: one of several processes, leaves FOLDER/PROCESS.pt with what it has of
each case. A case is a word: 1f1b-4-2-spread.
"""

import dataclasses
import math
import os
import sys

import poptorch
import torch
import torch.nn.functional as F

ROWS, CALLS, WIDTH = 4, 2, 16
PIPELINES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-2")
STRATEGIES = (*PIPELINES, "sharded", "serial-phased", "parallel-phased")
AXES = {
    "strategy": STRATEGIES,
    "stages": (2, 4, 8),
    "replicas": (1, 2, 4),
    "layout": ("fewest", "spread"),
    "processes": (2, 4),
}


class Net(torch.nn.Module):
    """A block for each stage. A value skips all stages, weights are tied, and forward writes statistics and draws."""

    def __init__(self, stages):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(stages))
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.dropout = torch.nn.Dropout(0.25)
        for stage, layer in enumerate(self.layers):
            poptorch.BeginBlock(layer, str(stage))

    def forward(self, x, target):
        early = self.layers[0](x)
        x = self.norm(torch.tanh(early))
        for layer in self.layers[1:]:
            x = self.dropout(torch.tanh(layer(x)))
        x = F.linear(x * early, self.layers[0].weight)
        return x, poptorch.identity_loss(F.mse_loss(x, target), reduction="mean")


@dataclasses.dataclass(frozen=True)
class Case:
    """replicas: of all processes. layout: "fewest" processes hold a replica, or it is "spread" over all."""

    strategy: str
    stages: int
    replicas: int
    layout: str

    def __str__(self):
        return "-".join(map(str, dataclasses.astuple(self)))

    @classmethod
    def of(cls, text):
        strategy, stages, replicas, layout = text.rsplit("-", 3)
        return cls(strategy, int(stages), int(replicas), layout)

    @property
    def devices(self):
        """Of a replica."""
        phased = {"serial-phased": 1, "parallel-phased": 2}
        return phased.get(self.strategy, max(1, self.stages // 2) if self.strategy == "interleaved" else self.stages)

    def groups(self, processes):
        """Of processes that hold the same replicas."""
        return 1 if self.layout == "spread" else math.gcd(processes, self.replicas)

    def fits(self, processes):
        """Can so many processes share its devices, and is it another layout than that with the fewest?"""
        if self.layout == "spread" and math.gcd(processes, self.replicas) == 1:
            return False
        return self.devices % (processes // self.groups(processes)) == 0

    def placement(self):
        blocks = [str(stage) for stage in range(self.stages)]
        if self.strategy == "sharded":
            return poptorch.ShardedExecution(*(poptorch.Stage(block).ipu(int(block)) for block in blocks))
        if self.strategy == "serial-phased":
            return poptorch.SerialPhasedExecution(*blocks)
        if self.strategy == "parallel-phased":
            return poptorch.ParallelPhasedExecution(*blocks)
        stages = [poptorch.Stage(block).ipu(int(block) % self.devices) for block in blocks]
        return poptorch.PipelinedExecution(*stages).schedule(self.strategy)

    def options(self):
        opts = poptorch.Options().deviceIterations(2).randomSeed(7).autoRoundNumIPUs(True)
        opts.Training.gradientAccumulation(3)
        opts.replicationFactor(self.replicas).outputMode(poptorch.OutputMode.All)
        opts.setExecutionStrategy(self.placement())
        opts.enforcePipelineMinimum(False)
        opts.threadsPerDevice(1)
        return opts

    def share(self, tensor, process, processes):
        """The rows of a process's replicas, of those of all."""
        groups = self.groups(processes)
        own = self.replicas // groups
        first = process * groups // processes * own
        rows = tensor.reshape(
            -1, self.replicas, tensor.numel() // tensor.shape[-1] // (6 * self.replicas), tensor.shape[-1]
        )
        return rows[:, first : first + own].flatten(0, 2)

    def train(self, process=0, processes=1):
        """Results of each call, then weights, statistics and moments."""
        opts = self.options()
        if processes > 1:
            devices = self.devices * self.replicas // processes
            opts.Distributed.configureProcessId(process, processes).devicesPerProcess(devices)
            opts.Distributed.processesPerReplica(processes // self.groups(processes))
        torch.manual_seed(1)
        model = Net(self.stages)
        optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.05)
        executor = poptorch.trainingModel(model, opts, optimizer)
        draw = torch.Generator().manual_seed(3)
        results = []
        for _ in range(CALLS):
            batch = torch.randn(2, 6 * self.replicas * ROWS, WIDTH, generator=draw)
            results.append(executor(*(self.share(rows, process, processes) for rows in batch)))
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        moments = executor._executable.session.optimizerState()
        state |= {f"moment {name}": tensor.clone() for name, tensor in moments.items()}
        executor.destroy()
        return results, state


def main():
    folder, *words = sys.argv[1:]
    process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found = {word: Case.of(word).train(process, processes) for word in words}
    torch.save(found, f"{folder}/{process}.pt")


if __name__ == "__main__":
    main()
