"""A ResNet as a pipeline of two devices: annotate, run, open the report, improve the split, report again.

    python resnet.py                    writes reports/first.html and reports/second.html; open them in a browser
    python resnet.py --cut layer3       another first cut: the name of a module
    python resnet.py --devices 4        the second split has four stages

The network has the layers of a ResNet-50, each a quarter as wide, and reads the handwritten digits of this repository.
docs/guide/resnet.md walks through what it prints and what the reports show.
"""

import argparse
from pathlib import Path

import abele
import digits_data
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

MICRO_BATCH, MICRO_BATCHES = 8, 8


class Bottleneck(nn.Module):
    """Three convolutions, the middle one of 3 x 3, beside a way past them."""

    def __init__(self, channels_in, width, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(channels_in, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.past = nn.Identity()
        if stride != 1 or channels_in != 4 * width:
            conv = nn.Conv2d(channels_in, 4 * width, 1, stride, bias=False)
            self.past = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.past(x))


def layer(channels_in, width, blocks, stride):
    first = Bottleneck(channels_in, width, stride)
    return nn.Sequential(first, *(Bottleneck(4 * width, width, 1) for _ in range(blocks - 1)))


class ResNet(nn.Module):
    """3, 4, 6 and 3 bottlenecks. It knows nothing of devices."""

    def __init__(self, width=16):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.layer1 = layer(width, width, 3, 1)
        self.layer2 = layer(4 * width, 2 * width, 4, 2)
        self.layer3 = layer(8 * width, 4 * width, 6, 2)
        self.layer4 = layer(16 * width, 8 * width, 3, 2)
        self.head = nn.Linear(32 * width, 10)

    def forward(self, images, labels=None):
        x = F.relu(self.norm(self.conv(images)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits = self.head(x.mean((2, 3)))
        return logits if labels is None else (logits, F.cross_entropy(logits, labels))


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cut", default="layer4", help="the module at which the second device begins at first")
    parser.add_argument("--devices", type=int, default=2, help="of the second split")
    parser.add_argument("--steps", type=int, default=10, help="of each training")
    parser.add_argument("--folder", type=Path, default=Path("reports"))
    return parser.parse_args()


class Training:
    """The same training each time: weights and data do not depend on where the network is cut."""

    def __init__(self, data):
        torch.manual_seed(0)
        self.net, self.data = ResNet(), data
        self.options = abele.Options().showCompilationProgressBar(False)
        self.options.Training.gradientAccumulation(MICRO_BATCHES)
        self.options.outputMode(abele.OutputMode.All)

    def run(self, steps):
        order = digits_data.Shuffled(len(self.data[0]), seed=1)
        loader = abele.DataLoader(self.options, TensorDataset(*self.data), batch_size=MICRO_BATCH, sampler=order)
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.model = abele.trainingModel(self.net, self.options, optimizer)
        losses = [self.model(*batch)[1] for batch, _ in zip(loader, range(steps), strict=False)]
        return torch.stack(losses)

    def show(self, title, path):
        report = self.model.report(path)
        print(f"\n{title}\n  stage     device  busy ms a step")
        for stage in report["stages"]:
            print(f"  {stage['name'][:12]:12} {stage['device']:3} {stage['busy_ns'] / 1e6:15.2f}")
        busy = [stage["busy_ns"] for stage in report["stages"]]
        print(f"  the device with the most work has {max(busy) / sum(busy) * len(busy):.2f} times the mean")
        simulated = abele.simulate(self.model.costs(), report["schedule"], MICRO_BATCHES)
        print(f"  with a core for each device: {simulated['step_ns'] / 1e6:.1f} ms a step, predicted")
        print(f"  {path}")
        return simulated["step_ns"]


def main():
    args = parse()
    args.folder.mkdir(parents=True, exist_ok=True)
    train, _ = digits_data.load()

    # One line says where the second device begins.
    first = Training(train)
    abele.BeginBlock(first.net.get_submodule(args.cut), args.cut, ipu_id=1)
    losses = first.run(args.steps)
    before = first.show(f"The second device begins at {args.cut}", args.folder / "first.html")
    first.model.destroy()

    # The report says that one device sets the pace. Abele chooses where to cut.
    second = Training(train)
    strategy = abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(args.devices)
    second.options.setExecutionStrategy(strategy)
    others = second.run(args.steps)
    after = second.show(f"Abele cuts for {args.devices} devices", args.folder / "second.html")
    print("\n".join(line for line in abele.explain(second.model).splitlines()[: 4 + 2 * args.devices]))
    print(f"\npredicted: {before / after:.2f} times as fast as the first split")
    same = torch.equal(losses, others)
    print(f"losses of {len(losses)} steps: {'the same, bit for bit' if same else 'DIFFERENT'}")
    print(f"mean loss of the first step {losses[0].mean().item():.3f}, of the last {losses[-1].mean().item():.3f}")


if __name__ == "__main__":
    main()
