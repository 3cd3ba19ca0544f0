"""The five training steps that the benchmarks ask for: small models of the kinds that people train.

Each is a chain of parts, so that it can be cut into pipeline stages anywhere. Everything comes from seeds: whoever
builds a workload gets the same weights, and whoever asks for a batch gets the same numbers.

    B micro-batch   T sequence   V vocabulary   D hidden width
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

MICRO_BATCHES = 8
DISTINCT_BATCHES = 4
OVERHEAD = "deep-narrow"  # its time is dispatch
SEED = 7  # eager PyTorch and our systems draw the same random numbers in training


@dataclass(frozen=True)
class Workload:
    """A model, its data and how it is trained.

    Attributes:
        parts: builds the modules, to be called one after the other.
        sample: makes n inputs and targets from a generator.
        optimizer: makes the optimizer from parameters.
        micro_batch: samples in a micro-batch.
        cut: index of the part where the second of two stages begins.
        quarters: the parts where the second, third and fourth of four begin.
        steps: steps in one timed sample, so that short ones can be timed too.
        micro_batches: of a step.
    """

    name: str
    parts: Callable
    sample: Callable
    optimizer: Callable
    micro_batch: int
    cut: int
    quarters: tuple
    steps: int = 1
    micro_batches: int = MICRO_BATCHES

    def model(self):
        torch.manual_seed(1234)
        return Chain(self.parts())

    def batch(self, step):
        """Inputs and targets of a whole step. Shapes: [micro_batches * B, ...]."""
        generator = torch.Generator().manual_seed(99 + step % DISTINCT_BATCHES)
        return self.sample(generator, self.micro_batches * self.micro_batch)


def headline(by_workload):
    """Values of the workloads that a mean contains: all but OVERHEAD, unless it is alone."""
    return {name: value for name, value in by_workload.items() if name != OVERHEAD} or by_workload


class Chain(nn.Module):
    """Calls parts in turn and ends in the mean cross entropy."""

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, x, target):
        for part in self.parts:
            x = part(x)
        return token_loss(x, target)


def token_loss(x, target):
    return F.cross_entropy(x.flatten(0, -2), target.flatten())


class Embedding(nn.Module):
    """Tokens and learned positions, normalised."""

    def __init__(self, vocabulary, dim, length):
        super().__init__()
        self.token = nn.Embedding(vocabulary, dim)
        self.position = nn.Parameter(torch.randn(length, dim) * 0.02)
        self.norm = nn.LayerNorm(dim)

    def forward(self, tokens):
        return self.norm(self.token(tokens) + self.position)


class Attention(nn.Module):
    def __init__(self, dim, heads, causal):
        super().__init__()
        self.width, self.causal = dim // heads, causal
        self.inward, self.outward = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x):
        batch, length, _ = x.shape
        heads = self.inward(x).view(batch, length, 3, -1, self.width).permute(2, 0, 3, 1, 4)
        q, k, v = heads.unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.outward(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class TransformerLayer(nn.Module):
    """Normalises before its halves in a decoder, after them in an encoder, as GPT and BERT do."""

    def __init__(self, dim, heads, decoder):
        super().__init__()
        self.decoder = decoder
        self.attention, self.feed = Attention(dim, heads, causal=decoder), FeedForward(dim)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x):
        if self.decoder:
            x = x + self.attention(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.feed(x))


class FirstTokenHead(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.pool, self.classify = nn.Linear(dim, dim), nn.Linear(dim, classes)

    def forward(self, x):
        return self.classify(torch.tanh(self.pool(x[:, 0])))


class ResidualBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResidualCell(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.linear(F.gelu(self.norm(x)))


class Recurrent(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.lstm = nn.LSTM(dim, dim, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def encoder(vocabulary, dim, length, heads, layers, classes):
    """Parts of a BERT with a classifier on its first token."""
    return [
        Embedding(vocabulary, dim, length),
        *(TransformerLayer(dim, heads, decoder=False) for _ in range(layers)),
        FirstTokenHead(dim, classes),
    ]


def decoder(vocabulary, dim, length, heads, layers):
    return [
        Embedding(vocabulary, dim, length),
        *(TransformerLayer(dim, heads, decoder=True) for _ in range(layers)),
        nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, vocabulary, bias=False)),
    ]


def resnet18(classes):
    parts = [nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))]
    channels = 64
    for wider, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        parts += [ResidualBlock(channels, wider, stride), ResidualBlock(wider, wider, 1)]
        channels = wider
    return [*parts, nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))]


def recurrent(vocabulary, dim):
    mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
    return [nn.Embedding(vocabulary, dim), mlp, Recurrent(dim), Recurrent(dim), nn.Linear(dim, vocabulary)]


def sequences(vocabulary, length):
    """Random tokens, and the same moved by one as the target."""

    def sample(generator, n):
        tokens = torch.randint(vocabulary, (n, length + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return sample


def labelled_sequences(vocabulary, length, classes):
    def sample(generator, n):
        return (
            torch.randint(vocabulary, (n, length), generator=generator),
            torch.randint(classes, (n,), generator=generator),
        )

    return sample


def labelled_noise(shape, classes):
    def sample(generator, n):
        return torch.randn(n, *shape, generator=generator), torch.randint(classes, (n,), generator=generator)

    return sample


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-4)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=1e-4)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.002, momentum=0.9)


WORKLOADS = {
    work.name: work
    for work in (
        Workload(
            "bert-mini",
            lambda: encoder(8192, 256, 128, heads=4, layers=4, classes=16),
            labelled_sequences(8192, 128, 16),
            adamw,
            micro_batch=4,
            cut=3,
            quarters=(2, 3, 4),
        ),
        Workload(
            "gpt-small",
            lambda: decoder(8192, 384, 128, heads=6, layers=6),
            sequences(8192, 128),
            adamw,
            micro_batch=2,
            cut=5,
            quarters=(3, 5, 7),
        ),
        Workload(
            "resnet-small",
            lambda: resnet18(100),
            labelled_noise((3, 64, 64), 100),
            sgd,
            micro_batch=8,
            cut=6,
            quarters=(3, 6, 8),
        ),
        Workload(
            "deep-narrow",
            lambda: [*(ResidualCell(128) for _ in range(64)), nn.Linear(128, 10)],
            labelled_noise((128,), 10),
            adam,
            micro_batch=16,
            cut=32,
            quarters=(16, 32, 48),
            steps=8,
        ),
        Workload(
            "lstm",
            lambda: recurrent(2048, 256),
            sequences(2048, 64),
            adamw,
            micro_batch=8,
            cut=3,
            quarters=(2, 3, 4),
        ),
    )
}
