"""Adapters of low rank by peft, trained as a pipeline of four stages, then written, read again and merged.

    python peft_lora.py                      learns digits, then the same digits lying on their side
    python peft_lora.py --rank 2

Needs the package peft. lora.py does the same without it. Before the training, two steps are compared with eager
PyTorch.
"""

import argparse
import copy
import sys
import tempfile

import abele
import digits_data
import torch
from digits_models import VisionTransformer
from lora import right, train

try:
    import peft
except ImportError as error:
    sys.exit(f"this example needs peft: pip install peft ({error})")

MICRO_BATCH, MICRO_BATCHES, STEPS = 8, 8, 2


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=6, help="of the first training, and of the adapters'")
    return parser.parse_args()


def by_eager(net, optimizer, images, labels):
    """The same update by PyTorch alone, with one thread, as each of our devices has."""
    optimizer.zero_grad()
    losses = []
    for rows in zip(images.split(MICRO_BATCH), labels.split(MICRO_BATCH), strict=True):
        _, loss = net(*rows)
        (loss / MICRO_BATCHES).backward()
        losses.append(loss.detach())
    optimizer.step()
    return torch.stack(losses)


def equal_to_eager(net, images, labels):
    """Whether a few steps give eager PyTorch's losses and weights, bit for bit. net stays as it is."""
    ours, theirs = copy.deepcopy(net), copy.deepcopy(net)
    optimizers = [
        torch.optim.AdamW([parameter for parameter in each.parameters() if parameter.requires_grad], lr=3e-3)
        for each in (ours, theirs)
    ]
    options = abele.Options().showCompilationProgressBar(False).outputMode(abele.OutputMode.All)
    options.Training.gradientAccumulation(MICRO_BATCHES)
    options.threadsPerDevice(1)
    model = abele.trainingModel(ours, options, optimizers[0])
    threads, same = torch.get_num_threads(), True
    torch.set_num_threads(1)
    for step in range(STEPS):
        rows = slice(step * MICRO_BATCH * MICRO_BATCHES, (step + 1) * MICRO_BATCH * MICRO_BATCHES)
        _, losses = model(images[rows], labels[rows])
        same = same and torch.equal(losses, by_eager(theirs, optimizers[1], images[rows], labels[rows]))
    torch.set_num_threads(threads)
    model.destroy()
    found, expected = ours.state_dict(), theirs.state_dict()
    return same and all(torch.equal(found[name], expected[name]) for name in expected)


def main():
    args = parse()
    torch.manual_seed(0)
    (images, labels), (test_images, test_labels) = digits_data.load()
    lying, test_lying = images.transpose(2, 3).contiguous(), test_images.transpose(2, 3).contiguous()

    net = VisionTransformer()
    train(net, images, labels, args.epochs)
    print(f"digits: {right(net, test_images, test_labels):.1f} %, lying {right(net, test_lying, test_labels):.1f} %")
    base = copy.deepcopy(net)

    config = peft.LoraConfig(r=args.rank, target_modules=["qkv", "proj", "up", "down"], modules_to_save=["head"])
    adapted = peft.get_peft_model(net, config)
    same = equal_to_eager(adapted, lying, labels)
    print(f"{STEPS} steps beside eager PyTorch: {'the same, bit for bit' if same else 'DIFFERENT'}")
    train(adapted, lying, labels, args.epochs)
    print(f"with peft's adapters of rank {args.rank}: lying {right(adapted, test_lying, test_labels):.1f} %")

    with tempfile.TemporaryDirectory() as folder:
        adapted.save_pretrained(folder)
        again = peft.PeftModel.from_pretrained(base, folder)
    with torch.no_grad():
        same = torch.equal(adapted.eval()(test_lying), again.eval()(test_lying))
    print(f"written and read again: {'the same, bit for bit' if same else 'DIFFERENT'}")
    merged = again.merge_and_unload()
    print(f"merged into the weights: lying {right(merged, test_lying, test_labels):.1f} %")


if __name__ == "__main__":
    main()
