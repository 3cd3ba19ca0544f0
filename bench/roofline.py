"""What could a training step reach on this machine, if nothing limited it but arithmetic, or memory?

    ./dev bench roofline                           the published workloads
    ./dev bench roofline --workloads small --steps 9

rates: float32 products (GFLOP/s), and reading and copying of memory (GB/s), with one thread and with all. Products are
ATen's and those of fusion("fast"). rows: products of a few rows with weights that come from memory, as single samples
have them. share: of the speed at which this machine reads memory; 1 means that no kernel could be faster.
workloads: floating-point operations of a step's products, convolutions and attention (torch.utils.flop_counter), and
the median of steps on the measured placement. share: of the rate of ATen's fastest product.
"""

import argparse
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
from abele._native import core
from support import results
from support.machine import busy_seconds
from support.published import find, named
from support.systems import Compiled
from torch.utils.flop_counter import FlopCounterMode

TARGETS = ("abele_python",)
GIGA = 1e9
PRODUCTS = ((1024, 1024, 1024), (512, 768, 3072), (4096, 512, 512))
MEMORY = 256 << 20  # bytes; more than any cache
WIDTH, WIDER = 768, 3072  # sizes of the weights that a few rows are multiplied with
ROWS = (1, 2, 4, 8, 16, 64, 256)


def least_seconds(work, seconds=0.5):
    work()
    times, begin = [], time.perf_counter()
    while time.perf_counter() - begin < seconds or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def kinds():
    """Ways to compute a product of two matrices into a third."""
    core()  # registers the operators
    return {"aten": torch.ops.aten.mm.out, "fast": torch.ops.abele_op.mm.out}


def rates():
    """GFLOP/s of products, GB/s of memory."""
    products = {}
    for m, n, k in PRODUCTS:
        a, b, out = torch.randn(m, k), torch.randn(n, k).t(), torch.empty(m, n)
        took = {kind: least_seconds(partial(mm, a, b, out=out)) for kind, mm in kinds().items()}
        products[f"{m}x{k}x{n}"] = {kind: 2 * m * n * k / s / GIGA for kind, s in took.items()}
    source, target = torch.ones(MEMORY // 4), torch.empty(MEMORY // 4)
    return {
        "products": products,
        "product": max(found["aten"] for found in products.values()),
        "read": MEMORY / least_seconds(source.sum) / GIGA,
        "copy": 2 * MEMORY / least_seconds(lambda: target.copy_(source)) / GIGA,
    }


def few_rows(read):
    """Products of few rows with one weight after the other: {rows: {kind: GB/s of weights, share of `read`}}."""
    weights = [torch.randn(WIDER, WIDTH).t() for _ in range(MEMORY // (4 * WIDTH * WIDER))]

    def all_products(mm, x, out):
        for weight in weights:
            mm(x, weight, out=out)

    found = {}
    for rows in ROWS:
        x, out = torch.randn(rows, WIDTH), torch.empty(rows, WIDER)
        for kind, mm in kinds().items():
            speed = MEMORY / least_seconds(partial(all_products, mm, x, out)) / GIGA
            found.setdefault(rows, {})[kind] = {"weights": speed, "share": speed / read}
    return found


def operations(workload):
    """Floating-point operations of a training step's products, convolutions and attention."""
    model, (x, target) = workload.model(), workload.batch(0)
    with FlopCounterMode(display=False) as counter:
        model(x[: workload.micro_batch], target[: workload.micro_batch]).backward()
    return counter.get_total_flops() * workload.micro_batches


def step_seconds(pipe, name, threads, steps):
    workload = find(name)
    system, batch = Compiled(workload, None, threads), workload.batch(0)
    system.step(*batch)
    times = []
    for _ in range(steps):
        busy, begin = busy_seconds(), time.perf_counter()
        system.step(*batch)
        times.append({"s": time.perf_counter() - begin, "busy_s": busy_seconds() - busy})
    pipe.send({"steps": times, **system.placement()})


def measure(workload, threads, steps, rate):
    gflop = operations(workload) / GIGA
    found = results.run_apart(step_seconds, workload.name, threads, steps)
    took = statistics.median(step["s"] for step in found["steps"])
    return {"gflop": gflop, "s": took, "gflops": gflop / took, "share": gflop / took / rate, **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="published", help="small, published, or names (default published)")
    parser.add_argument("--steps", type=int, default=5, help="steps of a workload (default 5)")
    parser.add_argument("--json", type=Path, help="default: bench/results/roofline-<date>.json")
    args = parser.parse_args()
    cores = torch.get_num_threads()
    result = results.begin(rates={}, rows={}, workloads={})
    for threads in sorted({1, cores}):
        torch.set_num_threads(threads)
        rate = result["rates"][threads] = rates()
        result["rows"][threads] = few_rows(rate["read"])
        print(f"{threads} threads: {rate['read']:.1f} GB/s read, {rate['copy']:.1f} GB/s copied")
        for product, found in rate["products"].items():
            print(f"  {product:14} {found['aten']:6.1f} GFLOP/s, fast {found['fast']:6.1f}")
        for rows, found in result["rows"][threads].items():
            print(f"  {rows:4} rows: share {found['aten']['share']:.2f}, fast {found['fast']['share']:.2f}")
    for workload in named(args.workloads):
        row = result["workloads"][workload.name] = measure(workload, cores, args.steps, rate["product"])
        words = f"{row['gflop']:7.0f} GFLOP {row['s']:7.3f} s {row['gflops']:6.1f} GFLOP/s {row['share']:.2f}"
        print(f"{workload.name:14} {words}")
    results.write(result, args.json, "roofline")
    return 0


if __name__ == "__main__":
    sys.exit(main())
