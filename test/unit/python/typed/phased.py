"""Phases, several processes, a data loader in another process, a custom argument type."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import poptorch
import torch


@dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        yield struct.left
        yield struct.right

    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Pair:
        return Pair(next(tensor_iterator), next(tensor_iterator))


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, pair: Pair) -> torch.Tensor:
        with poptorch.Block("0"):
            hidden = self.first(pair.left + pair.right)
        with poptorch.Block("1"):
            out: torch.Tensor = self.second(hidden)
        return out


def phased() -> poptorch.Options:
    strategy = poptorch.SerialPhasedExecution("0", "1")
    strategy.phase(0).ipus(0)
    strategy.setTensorsLiveness(poptorch.Liveness.AlwaysLive)
    options = poptorch.Options().setExecutionStrategy(strategy).showCompilationProgressBar(False)
    options.Precision.enableStochasticRounding(False)
    assert options.Distributed.numProcesses == 1
    options.outputMode(poptorch.OutputMode.All)
    values: dict[str, Any] = options.toDict()
    assert values["device_iterations"] == 1
    return options.clone()


def run() -> torch.Tensor:
    poptorch.registerCustomArgParser(Pair, PairParser())
    poptorch.setLogLevel("ERR")
    model = poptorch.inferenceModel(Net(), phased())
    out: torch.Tensor = model(Pair(torch.ones(1, 4), torch.zeros(1, 4)))
    return out


if __name__ == "__main__":
    print(run().shape)
