"""A training as users write it: blocks, options, a loader, an optimizer, a checkpoint."""

from pathlib import Path

import poptorch
import torch
from torch.utils.data import TensorDataset


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = poptorch.BeginBlock(torch.nn.Linear(8, 16), "encode", ipu_id=0)
        self.decode = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.encode(x))
        poptorch.Block.start("decode", ipu_id=1)
        out = self.decode(hidden)
        return out, poptorch.identity_loss(torch.nn.functional.mse_loss(out, target), reduction="mean")


def settings() -> poptorch.Options:
    options = poptorch.Options().deviceIterations(2).randomSeed(42)
    options.Training.gradientAccumulation(4)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(True))
    options.showCompilationProgressBar(False)
    steps: int = options.device_iterations * options.Training.gradient_accumulation
    assert steps == 8
    return options


def train(folder: Path) -> float:
    net, options = Net(), settings()
    data = TensorDataset(torch.randn(16, 8), torch.randn(16, 4))
    loader = poptorch.DataLoader(options, data, batch_size=2, shuffle=True)
    optimizer = poptorch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01, loss_scaling=2.0)
    model = poptorch.trainingModel(net, options, optimizer=optimizer)
    losses = []
    for x, target in loader:
        _, loss = model(x, target)
        losses.append(float(loss.mean()))
    optimizer.param_groups[0]["lr"] = 1e-4
    model.setOptimizer(optimizer)
    model.copyWeightsToHost()
    torch.save(model.state_dict(), folder / "weights.pt")
    seconds: float = max(model.getLatency())
    assert seconds > 0
    model.destroy()
    return losses[-1]


if __name__ == "__main__":
    print(train(Path(".")))
