"""What does the runtime take beside its kernels: an instruction, a micro-batch, a call?

    ./dev bench overhead

Programs whose kernels do next to nothing (one element), in three sizes that differ in one number each. The slope
between two sizes is the price of what they differ in, so that the rest cancels out. ATen's own part of an instruction
is measured by the same operator called from a loop in C++ (torch.jit): shown beside it, not taken off.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import poptorch
import torch
from support import results
from torch import nn

SHORT, LONG = 200, 1200
FEW, MANY = 4, 64


class Chain(nn.Module):
    """Additions of one element, one after the other; each is an instruction."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def forward(self, x):
        for _ in range(self.length):
            x = x + 1.0
        return x


def program(length, iterations):
    options = poptorch.Options().deviceIterations(iterations).showCompilationProgressBar(False)
    options.threadsPerDevice(1)
    return poptorch.inferenceModel(Chain(length), options), torch.zeros(iterations, 1)


class Timed:
    def __init__(self, length, iterations):
        self.model, self.x = program(length, iterations)
        for _ in range(5):
            self.model(self.x)
        self.ns = []

    def sample(self, calls):
        begin = time.perf_counter_ns()
        for _ in range(calls):
            self.model(self.x)
        self.ns.append((time.perf_counter_ns() - begin) / calls)

    def least(self):
        return min(self.ns)


def of_aten():
    """Nanoseconds of the same addition, called by torch's interpreter into memory that is there."""

    @torch.jit.script
    def loop(x: torch.Tensor, out: torch.Tensor, n: int):
        for _ in range(n):
            torch.add(x, 1.0, out=out)

    x, out = torch.zeros(1), torch.zeros(1)
    with torch.inference_mode():
        times = []
        for _ in range(20):
            begin = time.perf_counter_ns()
            loop(x, out, 1000)
            times.append((time.perf_counter_ns() - begin) / 1000)
    return statistics.median(sorted(times)[:10])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--json", type=Path, help="default: bench/results/overhead-<date>.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    short, long = Timed(SHORT, 1), Timed(LONG, 1)
    few, many = Timed(1, FEW), Timed(1, MANY)
    for _ in range(args.samples):
        for timed in (short, long, few, many):
            timed.sample(1)  # short, so that one falls between the turns of other programs
    instruction = (long.least() - short.least()) / (LONG - SHORT)
    micro_batch = (many.least() - few.least()) / (MANY - FEW)
    result = results.begin(
        instruction_ns=instruction,
        aten_add_ns=of_aten(),
        micro_batch_ns=micro_batch,
        call_ns=few.least() - FEW * micro_batch,
    )
    for name, what in (
        ("instruction_ns", "an instruction, its kernel on one element included"),
        ("aten_add_ns", "the same operator by torch's interpreter"),
        ("micro_batch_ns", "a micro-batch of one instruction: its action, input and result"),
        ("call_ns", "a call, without its micro-batches"),
    ):
        print(f"{result[name]:10.0f} ns  {what}")
    results.write(result, args.json, "overhead")
    return 0


if __name__ == "__main__":
    sys.exit(main())
