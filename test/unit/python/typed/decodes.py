"""Text, word by word: a loop around a program of fixed shapes, with its state in tensors of the caller."""

from dataclasses import dataclass
from typing import NamedTuple

import poptorch
import torch

WORDS, LENGTH, WIDTH = 16, 6, 8


@dataclass(frozen=True)
class Settings:
    words: int = WORDS
    width: int = WIDTH
    dropout: float = 0.1


class Next(NamedTuple):
    word: torch.Tensor
    text: torch.Tensor


class Writer(torch.nn.Module):
    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(settings.words, settings.width)
        self.mix = torch.nn.GRU(settings.width, settings.width, batch_first=True)
        self.head = torch.nn.Linear(settings.width, settings.words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, text: torch.Tensor, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        poptorch.Block.start("embed", ipu_id=0)
        hidden = self.embed(text)
        poptorch.Block.start("mix", ipu_id=0)
        mixed, _ = self.mix(hidden)
        last = poptorch.dynamic_slice(mixed, 1, place, 1, 1)
        word = self.head(last).argmax(-1).to(text.dtype)
        return word, poptorch.dynamic_update(text, word, 1, place + 1, 1)


def write(start: list[int], settings: Settings | None = None) -> list[int]:
    writer = Writer(settings or Settings()).eval()
    options = poptorch.Options().showCompilationProgressBar(False)
    options.outputMode(poptorch.OutputMode.Final).logDir("logs")
    step = poptorch.inferenceModel(writer, options=options)
    text = torch.zeros(1, LENGTH, dtype=torch.long)
    text[0, : len(start)] = torch.tensor(start)
    for place in range(len(start) - 1, LENGTH - 1):
        found = Next(*step(text, torch.tensor([place])))
        assert torch.equal(found.word, writer(text, torch.tensor([place]))[0])
        text = found.text
    lowest, mean, highest = step.getComputeLatency()
    assert lowest <= mean <= highest
    words: list[int] = text[0].tolist()
    return words


if __name__ == "__main__":
    assert write([3, 1])[:2] == [3, 1]
