"""What does the cross entropy of rows of logits take, forward and backward: ATen's four operators, and the same in the
logits' memory (pass fuse-loss)? In turns, one process; the same bits or it ends.

    ./dev bench loss --samples 40
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
from abele import _abele  # noqa: F401  (it registers the operators)
from support import results

SHAPES = {"gpt-small": (256, 8192), "lstm": (512, 2048), "a large vocabulary": (64, 50257)}
MEAN, NONE_IGNORED = 1, -100


class Apart:
    def __init__(self, logits):
        self.log_probs, self.of_loss, self.gradient = (torch.empty_like(logits) for _ in range(3))

    def __call__(self, logits, target, grad):
        aten = torch.ops.aten
        aten._log_softmax.out(logits, 1, False, out=self.log_probs)
        _, weight = aten.nll_loss_forward(self.log_probs, target, None, MEAN, NONE_IGNORED)
        of_loss = (grad, self.log_probs, target, None, MEAN, NONE_IGNORED, weight)
        aten.nll_loss_backward.grad_input(*of_loss, grad_input=self.of_loss)
        aten._log_softmax_backward_data.out(self.of_loss, self.log_probs, 1, logits.dtype, out=self.gradient)
        return self.gradient


class InPlace:
    def __call__(self, logits, target, grad):
        ours = torch.ops.abele_op
        ours.log_softmax_(logits, 1)
        _, weight = torch.ops.aten.nll_loss_forward(logits, target, None, MEAN, NONE_IGNORED)
        ours.cross_entropy_backward_(grad, logits, target, None, MEAN, NONE_IGNORED, weight)
        return logits


def measure(rows, classes, dtype, threads, samples):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    source, target = torch.randn(rows, classes).to(dtype), torch.randint(classes, (rows,))
    logits, grad = source.clone(), torch.tensor(0.125, dtype=dtype)
    ways = {"apart": Apart(logits), "in_place": InPlace()}
    times, found = {name: [] for name in ways}, {}
    with torch.no_grad():
        for _ in range(samples + 2):
            for name, way in ways.items():
                logits.copy_(source)
                begin = time.perf_counter_ns()
                result = way(logits, target, grad)
                times[name].append(time.perf_counter_ns() - begin)
                found[name] = result.clone()
    if not torch.equal(found["apart"], found["in_place"]):
        sys.exit("the results differ")
    medians = {name: statistics.median(taken[2:]) / 1e6 for name, taken in times.items()}
    # Others on the machine add to a time and take nothing from it.
    least = min(times["in_place"][2:]) / min(times["apart"][2:])
    return medians | {"ratio": medians["in_place"] / medians["apart"], "ratio_of_least": least}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name, (count, classes) in SHAPES.items():
        for dtype in (torch.float32, torch.bfloat16):
            for threads in (1, 2):
                row = measure(count, classes, dtype, threads, args.samples)
                kind = str(dtype).removeprefix("torch.")
                print(
                    f"{name:20} {kind:9} {threads} threads: {row['apart']:.2f} ms apart, ratio {row['ratio']:.2f}, "
                    f"of the least {row['ratio_of_least']:.2f}"
                )
                rows.append({"shape": name, "dtype": kind, "threads": threads} | row)
    if args.json:
        results.save(results.begin(rows=rows), args.json, "loss")
    return 0


if __name__ == "__main__":
    sys.exit(main())
