"""Fine-tunes a network of timm as a pipeline: pretrained weights from a file, a new head, all but the last part frozen.

    python timm_finetuning.py                        learns the digits 0 to 4, writes its weights, then learns all ten
    python timm_finetuning.py --model test_vit       another network of timm
    python timm_finetuning.py --weights FILE         begins with weights of yours, as safetensors

Needs the packages timm and torchvision. Abele cuts the network where its work is in equal parts.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import abele
import digits_data
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

try:
    import timm
except ImportError as error:
    sys.exit(f"this example needs timm: pip install timm ({error})")

SIDE, MICRO_BATCH, MICRO_BATCHES = 32, 8, 4


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="test_resnet")
    parser.add_argument(
        "--weights", type=Path, help="of the network with five classes; default: they are learned first"
    )
    parser.add_argument("--epochs", type=int, default=3, help="of each training")
    parser.add_argument("--devices", type=int, default=2)
    return parser.parse_args()


class WithLoss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, images, labels):
        logits = self.net(images)
        return logits, F.cross_entropy(logits, labels)


def network(args, classes):
    return timm.create_model(args.model, in_chans=1, num_classes=classes, **sized(args.model))


def sized(name):
    """Transformers of timm are made for one size of images."""
    return {"img_size": SIDE} if "vit" in name else {}


def train(net, images, labels, args, learning_rate):
    """Trains what requires gradients; a step of the learning rate each epoch."""
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    options = abele.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(MICRO_BATCHES)
    options.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(args.devices))
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    loader = abele.DataLoader(options, TensorDataset(images, labels), batch_size=MICRO_BATCH, shuffle=True)
    model = abele.trainingModel(WithLoss(net), options, optimizer)
    for _ in range(args.epochs):
        for batch in loader:
            model(*batch)
        schedule.step()
        model.setOptimizer(optimizer)
    busy = ", ".join(f"{stage['busy_ns'] / 1e6:.1f} ms" for stage in model.report()["stages"])
    model.destroy()
    print(f"trained {sum(p.numel() for p in parameters)} of {sum(p.numel() for p in net.parameters())} numbers")
    print(f"the last step's work by stage: {busy}")


def right(net, images, labels):
    net.eval()
    with torch.no_grad():
        found = 100 * (net(images).argmax(1) == labels).float().mean().item()
    net.train()
    return found


def main():
    args = parse()
    torch.manual_seed(0)
    (images, labels), (test_images, test_labels) = digits_data.load()
    images, test_images = (F.interpolate(part, (SIDE, SIDE)) for part in (images, test_images))

    with tempfile.TemporaryDirectory() as folder:
        weights = args.weights
        if weights is None:
            weights = Path(folder, "pretrained.safetensors")
            few, test_few = labels < 5, test_labels < 5
            net = network(args, classes=5)
            train(net, images[few], labels[few], args, 3e-3)
            print(f"the digits 0 to 4: {right(net, test_images[test_few], test_labels[test_few]):.1f} %")
            abele.save_tensors(weights, net.state_dict())
        net = network(args, classes=5)
        abele.load_weights(weights, net)

    net.requires_grad_(False)
    net.reset_classifier(10)
    before = {name: tensor.clone() for name, tensor in net.named_parameters() if not tensor.requires_grad}
    for parameter in list(net.children())[-3].parameters():  # the last part before pooling and head
        parameter.requires_grad_(True)
    print(f"\nall ten digits, with a new head: {right(net, test_images, test_labels):.1f} %")
    train(net, images, labels, args, 3e-3)
    print(f"fine-tuned: {right(net, test_images, test_labels):.1f} %")
    frozen = {name: tensor for name, tensor in net.named_parameters() if not tensor.requires_grad}
    same = all(torch.equal(before[name], tensor) for name, tensor in frozen.items())
    print(f"{len(frozen)} frozen tensors: {'unchanged' if same else 'CHANGED'}")


if __name__ == "__main__":
    main()
