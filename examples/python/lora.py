"""Adapts a trained network by adapters of low rank: its weights are frozen, two thin matrices a layer are trained.

    python lora.py                           learns digits, then the same digits lying on their side
    python lora.py --rank 2

A frozen weight has no gradient, no optimizer state and no update on the devices. In the end the adapters are multiplied
out and added to the weights: the network then has its old form.
"""

import argparse

import abele
import digits_data
import torch
from digits_models import VisionTransformer
from torch import nn
from torch.utils.data import TensorDataset


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6, help="of the first training, and of the adapters'")
    return parser.parse_args()


class Adapted(nn.Module):
    """A linear layer with a correction of low rank, which is 0 at first."""

    def __init__(self, layer, rank):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T

    def merged(self):
        with torch.no_grad():
            self.layer.weight += self.up @ self.down
        return self.layer


def replace(net, kind, make):
    """Puts make(layer) in the place of each layer of this kind."""
    for module in list(net.modules()):
        for name, child in list(module.named_children()):
            if type(child) is kind:
                setattr(module, name, make(child))


def train(net, images, labels, epochs):
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    options = abele.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    loader = abele.DataLoader(options, TensorDataset(images, labels), batch_size=8, shuffle=True)
    model = abele.trainingModel(net, options, torch.optim.AdamW(parameters, lr=3e-3))
    for _ in range(epochs):
        for batch in loader:
            model(*batch)
    state = sum(device["by_class"]["optimizer_state"] for device in model.memoryReport()["devices"])
    model.destroy()
    trained = sum(parameter.numel() for parameter in parameters)
    print(f"trained {trained} of {sum(p.numel() for p in net.parameters())} numbers; optimizer state {state} bytes")


def right(net, images, labels):
    """Per cent of the images that are recognised."""
    with torch.no_grad():
        return 100 * (net(images).argmax(1) == labels).float().mean().item()


def main():
    args = parse()
    torch.manual_seed(0)
    (images, labels), (test_images, test_labels) = digits_data.load()
    lying, test_lying = images.transpose(2, 3).contiguous(), test_images.transpose(2, 3).contiguous()

    net = VisionTransformer()
    train(net, images, labels, args.epochs)
    print(f"digits: {right(net, test_images, test_labels):.1f} %, lying {right(net, test_lying, test_labels):.1f} %")

    net.requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    replace(net, nn.Linear, lambda layer: Adapted(layer, args.rank))
    train(net, lying, labels, args.epochs)
    print(f"with adapters of rank {args.rank}: lying {right(net, test_lying, test_labels):.1f} %")
    frozen = {name.replace(".layer.", "."): tensor for name, tensor in net.state_dict().items()}
    same = all(torch.equal(frozen[name], tensor) for name, tensor in before.items())
    print(f"frozen weights: {'unchanged' if same else 'CHANGED'}")

    replace(net, Adapted, Adapted.merged)
    assert net.state_dict().keys() == before.keys()
    print(f"merged into the weights: lying {right(net, test_lying, test_labels):.1f} %")


if __name__ == "__main__":
    main()
