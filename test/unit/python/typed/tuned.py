"""Parameter groups, a schedule of learning rates, inner tensors, and a choice of schedule by prediction."""

import abele
import torch
from torch.optim.lr_scheduler import LambdaLR


class Net(torch.nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(layers)))
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with abele.NameScope("body"):
            out = self.norm(self.layers(x))
        return out, abele.identity_loss(out.square(), reduction="sum")


def settings(schedule: str) -> abele.Options:
    options = abele.Options().modelName("tuned").showCompilationProgressBar(False)
    strategy = abele.PipelinedExecution(abele.AutoStage.AutoSplit).schedule(schedule)
    options.setExecutionStrategy(strategy).Training.gradientAccumulation(4)
    options.anchorTensor("gradient", "Gradient___layers.0.weight")
    options.Precision.setPartialsType(torch.float)
    options.Training.accumulationAndReplicationReductionType(abele.ReductionType.Sum)
    options.setAvailableMemoryProportion({"IPU0": 0.5, "IPU1": 0.5})
    return options


def best(model: abele.CompiledModel) -> str:
    found: dict[str, float] = {}
    for schedule in ("gpipe", "1f1b", "zero-bubble"):
        simulated: abele.Simulation = abele.simulate(model.costs(), schedule, micro_batches=4)
        found[schedule] = simulated["step_ns"]
    return min(found, key=lambda name: found[name])


def train(steps: int) -> tuple[str, float]:
    net = Net()
    biases = [p for name, p in net.named_parameters() if name.endswith("bias")]
    others = [p for name, p in net.named_parameters() if not name.endswith("bias")]
    groups = [{"params": others}, {"params": biases, "weight_decay": 0.0}]
    optimizer = abele.optim.LAMB(groups, lr=0.01, weight_decay=0.1)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1))
    model = abele.trainingModel(net, settings("1f1b"), optimizer=optimizer)
    for _ in range(steps):
        model(torch.randn(8, 8))
        scheduler.step()
        model.setOptimizer(optimizer)
    return best(model), float(scheduler.get_last_lr()[0])


if __name__ == "__main__":
    chosen, _ = train(2)
    assert chosen in ("gpipe", "1f1b", "zero-bubble")
