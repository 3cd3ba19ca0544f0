"""How even are the stages that AutoSplit makes of a model?

    ./dev bench split_balance [--models lstm,attention] [--devices 2,4] [--steps 8] [--json FILE]

Models of different kinds, and each on several devices of one thread: time at work of the busiest device in a training
step of eight micro-batches, to the mean of all devices (1: as even as can be). Of each stage the least time of several
steps counts. A machine with fewer cores than devices makes the times longer, but not those of one device alone.
"""

import argparse
import statistics
from pathlib import Path

import abele
import torch
from support import results
from torch import nn

MICRO_BATCHES = 8
ROWS_OF_TEXT, WORDS, CLASSES = 20_000, 64, 50


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, target):
        out = self.net(x)
        return nn.functional.cross_entropy(out.flatten(0, -2), target.flatten())


class Recurrent(nn.Module):
    """Four LSTMs behind a large table of words."""

    def __init__(self, width=256):
        super().__init__()
        self.words = nn.Embedding(ROWS_OF_TEXT, width)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(4))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x)


class Encoder(nn.Module):
    """Six layers with dropout."""

    def __init__(self, width=192):
        super().__init__()
        self.words = nn.Embedding(ROWS_OF_TEXT, width)
        layer = {"dropout": 0.1, "batch_first": True, "activation": "gelu", "norm_first": True}
        self.layers = nn.Sequential(*(nn.TransformerEncoderLayer(width, 4, 4 * width, **layer) for _ in range(6)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids):
        return self.head(self.layers(self.words(ids)))


class Attention(nn.Module):
    """Six layers, of which two attend to 512 places."""

    def __init__(self, width=128, heads=4):
        super().__init__()
        self.words, self.head, self.heads = nn.Embedding(ROWS_OF_TEXT, width), nn.Linear(width, CLASSES), heads
        self.inward = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(2))
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(6)
        )

    def forward(self, ids):
        x = self.words(ids)
        for i, layer in enumerate(self.layers):
            if i < len(self.inward):
                parts = self.inward[i](x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
                x = x + nn.functional.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
            x = x + layer(x)
        return self.head(x)


def convolutions():
    layers, width = [], 3
    for out, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        layers += [nn.Conv2d(width, out, 3, stride, 1), nn.BatchNorm2d(out), nn.ReLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def depthwise():
    layers, width = [nn.Conv2d(3, 64, 3, 2, 1)], 64
    for out, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (256, 1)):
        layers += [nn.Conv2d(width, width, 3, stride, 1, groups=width), nn.BatchNorm2d(width), nn.SiLU()]
        layers += [nn.Conv2d(width, out, 1), nn.GroupNorm(8, out), nn.SiLU()]
        width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def text(rows, words):
    rows *= MICRO_BATCHES
    return torch.randint(ROWS_OF_TEXT, (rows, words)), torch.randint(CLASSES, (rows, words))


def images(rows, size):
    rows *= MICRO_BATCHES
    return torch.randn(rows, 3, size, size), torch.randint(CLASSES, (rows,))


MODELS = {
    "lstm": (Recurrent, lambda: text(4, WORDS)),
    "encoder": (Encoder, lambda: text(4, WORDS)),
    "attention": (Attention, lambda: text(1, 512)),
    "convolutions": (convolutions, lambda: images(8, 32)),
    "depthwise": (depthwise, lambda: images(8, 64)),
}


def busy_times(name, devices, steps):
    """Milliseconds at work of each stage."""
    torch.manual_seed(1)
    make, batch = MODELS[name]
    net = WithLoss(make())
    options = abele.Options().showCompilationProgressBar(False)
    options.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(devices))
    options.Training.gradientAccumulation(MICRO_BATCHES)
    model = abele.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.01))
    inputs = batch()
    model(*inputs)
    found = []
    for _ in range(steps):
        model(*inputs)
        found.append([stage["busy_ns"] / 1e6 for stage in model.report()["stages"]])
    return [min(times) for times in zip(*found, strict=True)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--devices", default="2,4")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    result = results.begin(models={})
    print(f"{'model':13} devices  busiest to mean  ms at work")
    for name in arguments.models.split(","):
        for devices in map(int, arguments.devices.split(",")):
            times = busy_times(name, devices, arguments.steps)
            ratio = max(times) / statistics.mean(times)
            result["models"].setdefault(name, {})[devices] = {"busiest_to_mean": ratio, "busy_ms": times}
            print(f"{name:13} {devices:7} {ratio:16.2f}  " + " ".join(f"{ms:8.1f}" for ms in times), flush=True)
    if arguments.json:
        results.save(result, arguments.json, "split_balance")


if __name__ == "__main__":
    main()
