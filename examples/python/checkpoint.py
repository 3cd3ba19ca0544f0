"""Trains with checkpoints: stopped at any moment and started again, it ends as a run that never stopped.

    python checkpoint.py --folder run        Ctrl-C or SIGTERM stops it behind a step, with exit status 3
    python checkpoint.py --folder run        goes on; so it does after kill -9, from the newest checkpoint
    python checkpoint.py                     without checkpoints: the same fingerprint of the weights

The model has dropout, the loader shuffles, the learning rate falls: a checkpoint keeps where all of them are.
"""

import argparse
import hashlib
import os
import signal
import sys

import abele
import digits_data
import torch
from torch import nn
from torch.utils.data import TensorDataset

MICRO_BATCH, MICRO_BATCHES = 8, 4
STOPPED = 3  # exit status, as abele run has it


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", help="of the checkpoints; without it none are written")
    parser.add_argument("--every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--devices", type=int, default=2, choices=(1, 2), help="a run may go on with another number")
    parser.add_argument("--terminate-after", type=int, metavar="STEP", help="send itself SIGTERM after this step")
    parser.add_argument("--kill-after", type=int, metavar="STEP", help="send itself SIGKILL after this step")
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        self.lower = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.GELU(), nn.Dropout(0.2))
        self.upper = nn.Sequential(nn.Linear(96, 96), nn.GELU(), nn.Dropout(0.2), nn.Linear(96, 10))

    def forward(self, images, labels):
        abele.Block.start("lower", ipu_id=0)
        hidden = self.lower(images)
        abele.Block.start("upper", ipu_id=self.devices - 1)
        return nn.functional.cross_entropy(self.upper(hidden), labels)


def fingerprint(module):
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def main():
    args = parse()
    torch.manual_seed(0)
    options = abele.Options().randomSeed(7).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(MICRO_BATCHES)
    options.threadsPerDevice(1)  # the same bits with another number of devices
    net = Net(args.devices)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    loader = abele.DataLoader(options, TensorDataset(*digits_data.load()[0]), batch_size=MICRO_BATCH, shuffle=True)
    model = abele.trainingModel(net, options, optimizer)

    found = args.folder and abele.load_checkpoint(args.folder, model, loader, scheduler=scheduler)
    step = found["step"] if found else 0
    print(f"goes on from step {step}" if found else "begins", flush=True)

    with abele.stop_on_signal() as stop:
        is_over = step >= args.steps
        while not is_over:
            for images, labels in loader:
                loss = model(images, labels)
                scheduler.step()
                model.setOptimizer(optimizer)
                step += 1
                if step % 20 == 0:
                    print(f"step {step}  loss {loss.item():.4f}", flush=True)
                if step == args.terminate_after:
                    os.kill(os.getpid(), signal.SIGTERM)  # as a scheduler of jobs does
                is_over = step == args.steps or bool(stop)  # asked once a step: a signal comes at any moment
                if args.folder and (is_over or step % args.every == 0):
                    abele.save_checkpoint(args.folder, model, loader, step=step, scheduler=scheduler)
                if step == args.kill_after:
                    os.kill(os.getpid(), signal.SIGKILL)
                if is_over:
                    break
    model.copyWeightsToHost()
    print(f"step {step}: weights {fingerprint(net)}")
    if step < args.steps:
        print("stopped by a signal: start it again, and it goes on", flush=True)
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
