"""Copies of a model, with a loader in another process."""

from collections.abc import Iterator

import poptorch
import torch
from torch.utils.data import IterableDataset


class Rows(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for k in range(self.count):
            yield torch.full((4,), float(k)), torch.tensor(k % 2)


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.loss = torch.nn.Linear(4, 2), torch.nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor | tuple[torch.Tensor, ...]:
        out: torch.Tensor = self.body(x)
        return out if target is None else (out, self.loss(out, target))


def options_of(replicas: int) -> poptorch.Options:
    options = poptorch.Options()
    options.replicationFactor(replicas).deviceIterations(2).enableExecutableCaching("cache")
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useReplicatedTensorSharding(False))
    options.Training.setMeanAccumulationAndReplicationReductionStrategy(poptorch.MeanReductionStrategy.Running)
    options.Training.gradientAccumulation(2).setAutomaticLossScaling(False)
    options.outputMode(poptorch.OutputMode.EveryN, 2).showCompilationProgressBar(False)
    return options


def train(count: int = 32) -> list[float]:
    options, net = options_of(2), Classifier()
    optimizer = poptorch.optim.RMSprop(net.parameters(), lr=0.01, alpha=0.9, use_tf_variant=True)
    model = poptorch.trainingModel(net, options, optimizer)
    loader = poptorch.DataLoader(options, Rows(count), batch_size=2)
    assert loader.combinedBatchSize == 16
    losses: list[float] = []
    fork = poptorch.SharingStrategy.Fork
    batches = poptorch.AsynchronousDataAccessor(loader, buffer_size=2, sharing_strategy=fork)
    for x, target in batches:
        losses += model(x, target)[1].flatten().tolist()
    batches.terminate()
    return losses


if __name__ == "__main__":
    assert train()
