"""Does a product with a weight that MKL has packed before save time, and has it the bits of a plain one?

    ./dev bench packed_weights                 shapes of the five workloads, one thread
    ./dev bench packed_weights --threads 2

A row: rows of the input, features in and out, microseconds of each (the least of several calls, in turns), bits.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
from support.machine import describe
from support.timing import least

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = [
    (512, 256, 768),
    (512, 256, 256),
    (512, 256, 1024),
    (512, 1024, 256),
    (256, 384, 1152),
    (256, 384, 1536),
    (256, 1536, 384),
    (256, 384, 8192),
    (512, 256, 2048),
    (16, 128, 128),
    (128, 256, 1024),
    (1, 256, 1024),
]


def measure(rows, inward, outward, calls):
    x, weight, bias = torch.randn(rows, inward), torch.randn(outward, inward), torch.randn(outward)
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)

    def plain():
        return torch.nn.functional.linear(x, weight, bias)

    def with_packed():
        return torch.ops.mkl._mkl_linear(x, packed, weight, bias, rows)

    same = torch.equal(plain(), with_packed())
    pairs = [(least(plain, calls), least(with_packed, calls)) for _ in range(2)]
    return {"plain_us": min(a for a, _ in pairs), "packed_us": min(b for _, b in pairs), "same_bits": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--calls", type=int, default=300, help="calls of each in a turn, of two (default 300)")
    parser.add_argument("--json", type=Path, help="default: bench/results/packed_weights-<date>.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "threads": args.threads}
    result["shapes"] = {}
    for shape in SHAPES:
        row = result["shapes"][" x ".join(map(str, shape))] = measure(*shape, args.calls)
        ratio = row["packed_us"] / row["plain_us"]
        bits = "same" if row["same_bits"] else "differ"
        print(f"{shape!s:18} {row['plain_us']:9.1f} {row['packed_us']:9.1f} {ratio:5.2f} {bits}")
    path = args.json or RESULTS / f"packed_weights-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
