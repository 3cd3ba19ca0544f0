"""Models of four kinds, small enough that a step takes some 50 ms, cut into two or four stages of about equal work."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from .workloads import Chain, ResidualBlock, ResidualCell, encoder, labelled_noise, labelled_sequences, recurrent

DEVICES = 2


@dataclass(frozen=True)
class Pipeline:
    """A chain of parts and how to train it.

    Attributes:
        parts: builds the modules, to be called one after the other.
        sample: makes n inputs and targets from a generator.
        micro_batch: samples in a micro-batch.
        cuts: by number of stages, the parts where stages begin.
    """

    name: str
    parts: Callable
    sample: Callable
    micro_batch: int
    cuts: dict

    def batch(self, micro_batches, seed=7):
        generator = torch.Generator().manual_seed(seed)
        return self.sample(generator, micro_batches * self.micro_batch)

    def compile(self, schedule, micro_batches, *, stages=DEVICES, devices=DEVICES, costs=None, threads=1, cuts=None):
        """A wrapped model, stage s on device s modulo devices, and one batch for it."""
        import abele

        torch.manual_seed(1234)
        model = Chain(self.parts())
        begins = list(cuts or self.cuts[stages])
        for stage, part in enumerate(begins):
            abele.BeginBlock(model.parts[part], f"stage{stage}")
        placed = [abele.Stage(f"stage{s}").ipu(s % devices) for s in range(len(begins))]
        if schedule == "sharded":
            strategy = abele.ShardedExecution(*placed)
        else:
            strategy = abele.PipelinedExecution(*placed).schedule(schedule)
            if costs is not None:
                strategy.costs(costs)
        options = abele.Options()
        options.setExecutionStrategy(strategy)
        options.Training.gradientAccumulation(micro_batches)
        options.showCompilationProgressBar(False)
        options.threadsPerDevice(threads)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.002, momentum=0.9)
        return abele.trainingModel(model, options, optimizer), self.batch(micro_batches)


def convnet(classes):
    """A small ResNet with BatchNorm."""
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    blocks = [ResidualBlock(16, 16, 1) for _ in range(8)]
    return [stem, *blocks, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, classes))]


def tokens_and_next(vocabulary, length):
    def sample(generator, n):
        tokens = torch.randint(vocabulary, (n, length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return sample


PIPELINES = {
    pipeline.name: pipeline
    for pipeline in (
        Pipeline(
            "transformer",
            lambda: encoder(2048, 128, 32, heads=4, layers=8, classes=16),
            labelled_sequences(2048, 32, 16),
            micro_batch=2,
            cuts={2: (0, 5), 4: (0, 3, 5, 7)},
        ),
        Pipeline(
            "convnet",
            lambda: convnet(10),
            labelled_noise((3, 16, 16), 10),
            micro_batch=4,
            cuts={2: (0, 5), 4: (0, 3, 5, 7)},
        ),
        Pipeline(
            "lstm",
            lambda: recurrent(256, 96),
            tokens_and_next(256, 24),
            micro_batch=4,
            cuts={2: (0, 3), 4: (0, 2, 3, 4)},
        ),
        Pipeline(
            "deep-narrow",
            lambda: [*(ResidualCell(128) for _ in range(64)), nn.Linear(128, 10)],
            labelled_noise((128,), 10),
            micro_batch=16,
            cuts={2: (0, 32), 4: (0, 16, 32, 48)},
        ),
    )
}
