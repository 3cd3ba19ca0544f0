"""A model that is made without memory, and its weights in files."""

from collections.abc import Iterator
from pathlib import Path

import abele
import torch


class Layer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = abele.recomputationCheckpoint(torch.relu(self.up(x)))
        return x + torch.nn.functional.dropout(self.down(hidden), 0.1, self.training)


class Net(torch.nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(*(Layer(width) for _ in range(layers)))
        abele.BeginBlock(self.layers[layers // 2], "second half", ipu_id=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out: torch.Tensor = self.layers(x)
        return out, abele.identity_loss((out - x).square(), reduction="mean")


def sizes(tensors: Iterator[tuple[str, torch.Tensor]]) -> dict[str, int]:
    return {name: tensor.numel() for name, tensor in tensors}


def train(folder: Path, steps: int = 2) -> float:
    with torch.device("meta"):
        net = Net(8, 4)
    options = abele.Options().randomSeed(1).showCompilationProgressBar(False)
    optimizer = abele.optim.AdamW(net.parameters(), lr=1e-3, max_grad_norm=1.0)
    model = abele.trainingModel(net, options, optimizer=optimizer)
    abele.init_weights(model, seed=3)
    losses = [float(model(torch.randn(4, 8))[1]) for _ in range(steps)]
    assert sizes(abele.weights(model)) and sizes(abele.optimizer_state(model))
    abele.save_weights(folder / "weights", model)
    model.destroy()
    whole = abele.offload(Net(8, 4), folder)
    abele.load_weights(folder / "weights", whole, convert=False)
    tensors: dict[str, torch.Tensor] = {"losses": torch.tensor(losses)}
    abele.save_tensors(folder / "losses.safetensors", tensors)
    return float(abele.load_tensors(folder / "losses.safetensors")["losses"].mean())


if __name__ == "__main__":
    train(Path("."))
