"""Trains one GPT whose stages are in two processes, each with the weights of its own stages.

    python -m torch.distributed.run --nproc-per-node 2 two_processes.py
    poprun --num-instances 2 --num-replicas 1 --ipus-per-replica 4 python two_processes.py
    python two_processes.py                  one process: the same losses and weights, bit for bit

Every process runs this program and gives the model the same batches.
"""

import argparse
import hashlib
import os

import abele
import torch
from gpt_model import GPT, Text

DEVICES = 4  # for the whole model


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=40)
    return parser.parse_args()


def main():
    args = parse()
    process, processes = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1)))
    options = abele.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(8)
    options.outputMode(abele.OutputMode.All)
    options.threadsPerDevice(1)
    if processes > 1:
        options.Distributed.setEnvVarNames("WORLD_SIZE", "RANK").devicesPerProcess(DEVICES // processes)

    text = Text()
    torch.manual_seed(1)
    net = GPT(len(text.characters), DEVICES)
    model = abele.trainingModel(net, options, torch.optim.AdamW(net.parameters(), lr=3e-3))
    random = torch.Generator().manual_seed(1)
    for step in range(args.steps):
        _, losses = model(*text.pieces(8 * 4, net.context, random))
        if process == 0 and step % 10 == 0:
            print(f"step {step:3}  loss {losses.mean().item():.4f}\n", end="", flush=True)

    held = sum(stage["mapped_bytes"] for stage in model.report()["stages"])
    model.copyWeightsToHost()  # complete in all processes
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in net.state_dict().values()))
    # One write: the processes share a terminal.
    said = f"process {process} of {processes}: {held / 2**20:.1f} MiB, weights {digest.hexdigest()[:16]}\n"
    print(said, end="", flush=True)


if __name__ == "__main__":
    main()
