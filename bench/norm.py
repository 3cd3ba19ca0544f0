"""What does layer normalisation take by the loops of Options.fusion("fast"), against ATen's kernels?

    ./dev bench norm                           rows of three of the five workloads, one thread

A row: rows and their width; microseconds of forward and of backward by ATen and by ours, the least of all calls, in
turns.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import abele  # noqa: F401  registers the operators
import torch
from abele._native import core
from support.machine import RESULTS, describe
from support.timing import least

SHAPES = [(16, 128), (1, 128), (256, 384), (512, 256)]
BOTH = [True, True, True]


def measure(rows, width, calls):
    core()
    x, grad = torch.randn(rows, width), torch.randn(rows, width)
    weight, bias = torch.randn(width), torch.randn(width)
    aten, ours = torch.ops.aten, torch.ops.abele_op
    _, mean, scale = aten.native_layer_norm(x, [width], weight, bias, 1e-5)
    kinds = {
        "aten_forward_us": lambda: aten.native_layer_norm(x, [width], weight, bias, 1e-5),
        "forward_us": lambda: ours.layer_norm(x, [width], weight, bias, 1e-5),
        "aten_backward_us": lambda: aten.native_layer_norm_backward(grad, x, [width], mean, scale, weight, bias, BOTH),
        "backward_us": lambda: ours.layer_norm_backward(grad, x, [width], mean, scale, weight),
    }
    found = {name: [] for name in kinds}
    for _ in range(5):
        for name, call in kinds.items():
            found[name].append(least(call, calls))
    return {name: min(times) for name, times in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=400, help="calls of each in a turn, of five (default 400)")
    parser.add_argument("--json", type=Path, help="default: bench/results/norm-<date>.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "shapes": {}}
    for shape in SHAPES:
        row = result["shapes"][" x ".join(map(str, shape))] = measure(*shape, args.calls)
        print(f"{shape!s:12}", " ".join(f"{name} {us:.2f}" for name, us in row.items()))
    path = args.json or RESULTS / f"norm-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
