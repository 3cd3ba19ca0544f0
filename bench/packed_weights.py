"""Does a product with a weight that MKL has packed before save time, and has it the bits of a plain one?

    ./dev bench packed_weights                 shapes of the five workloads, one thread
    ./dev bench packed_weights --threads 2     wall-clock time: on an idle machine only

Forward is linear(x, weight), backward the gradient of its input. Each call takes the next of many weights, more than
the second-level cache holds, as the layers of a step do. With one thread a time is the thread's own. A row: rows of the
input, features in and out, which product; the median of a plain product; of pairs of calls in turns the median ratio
packed / plain; what packing costs, in plain products; the ratio with that cost spread over the micro-batches of an
update; bits. The ratio of a single row says nothing of inference: it is a matrix times a vector.
"""

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
from support.machine import RESULTS, describe
from support.workloads import MICRO_BATCHES

TARGETS = ()  # torch alone
SHAPES = [
    (512, 256, 768),
    (512, 256, 256),
    (512, 256, 1024),
    (512, 1024, 256),
    (256, 384, 384),
    (256, 384, 1152),
    (256, 384, 1536),
    (256, 1536, 384),
    (256, 384, 8192),
    (512, 256, 2048),
    (16, 128, 128),
    (128, 256, 1024),
    (1, 256, 1024),
]
WORKING_SET = 48 << 20  # bytes of all weights of a shape
FEWEST_PAIRS = 40


def plain_forward(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias)


def plain_backward(gradient, weight, _):
    return gradient.mm(weight)


def packed_product(x, packed, weight, bias):
    return torch.ops.mkl._mkl_linear(x, packed, weight, bias, x.shape[0])


def timed(clock, call, *args):
    begin = clock()
    result = call(*args)
    return clock() - begin, result


def measure(rows, inward, outward, backward, clock):
    bias = None if backward else torch.randn(outward)
    x = torch.randn(rows, outward if backward else inward)
    plain = plain_backward if backward else plain_forward
    layers = min(200, max(3, WORKING_SET // (4 * inward * outward)))
    weights = [torch.randn(outward, inward) for _ in range(layers)]
    # The gradient of the input is a linear layer with the weight the other way round.
    turned = [weight.t().contiguous() if backward else weight for weight in weights]
    packs, packed = zip(
        *(timed(clock, torch.ops.mkl._mkl_reorder_linear_weight, weight, rows) for weight in turned), strict=True
    )
    same, plains, ratios = True, [], []
    for pair in range(max(FEWEST_PAIRS, 2 * layers)):
        at, other = pair % layers, (pair + layers // 2) % layers
        first, result = timed(clock, plain, x, weights[at], bias)
        second, _ = timed(clock, packed_product, x, packed[other], turned[other], bias)
        plains.append(first)
        ratios.append(second / first)
        if pair < layers:
            same = same and torch.equal(result, packed_product(x, packed[at], turned[at], bias))
    usual, ratio, packing = median(plains), median(ratios), median(packs) / median(plains)
    return {
        "plain_us": usual * 1e6,
        "least_plain_us": min(plains) * 1e6,
        "packed": ratio,
        "packing": packing,
        "packed_with_packing": ratio + packing / MICRO_BATCHES,
        "same_bits": same,
    }


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="default: bench/results/packed_weights-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    clock = time.thread_time if args.threads == 1 else time.perf_counter
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "threads": args.threads}
    result["shapes"] = {}
    print("rows, in, out       product   plain us  packed  packing  with packing")
    for shape in SHAPES:
        for product in ("forward", "backward"):
            row = measure(*shape, product == "backward", clock)
            result["shapes"].setdefault(" x ".join(map(str, shape)), {})[product] = row
            bits = "same bits" if row["same_bits"] else "other bits"
            print(
                f"{shape!s:18} {product:9} {row['plain_us']:9.1f} {row['packed']:7.3f} {row['packing']:8.3f} "
                f"{row['packed_with_packing']:13.3f}  {bits}",
                flush=True,
            )
    path = args.json or RESULTS / f"packed_weights-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
