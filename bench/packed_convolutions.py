"""Do convolutions whose weights oneDNN has in blocks before save time, and have they the bits of plain ones?

    ./dev bench packed_convolutions                   the convolutions of resnet-small, one thread
    ./dev bench packed_convolutions --threads 2       wall-clock time: on an idle machine only

ATen has packed forms of two of a convolution's three products: mkldnn_prepacked::conv2d_run forward, and for the
gradient of the input a transposed convolution, whose kernel is the same. It has none that leaves the gradient of a
weight in blocks; what moving a weight out of blocks takes is the most that such a form could save.

First eager PyTorch's training step and predictions, plain and packed in turns: weights are packed once an update, or
once for the micro-batches of a call. Then our own predictions, with fusion("off") and with "exact". Last the products
one by one: each call takes the next of many weights, more than the second-level cache holds. A row: the median of a
plain product; of pairs of calls in turns the median ratio packed / plain; what packing takes, in plain products (of the
gradient of a weight: what moving it out of blocks takes); bits.

With one thread a time is the thread's own. Freed memory stays with the process, as workspaces stay with a device.
"""

import argparse
import ctypes
import json
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import torch
from support import systems
from support.machine import RESULTS, describe
from support.workloads import MICRO_BATCHES, WORKLOADS
from torch.nn import functional as F

WORKING_SET = 48 << 20  # bytes of all weights of a shape
FEWEST_PAIRS = 40
WARM_STEPS = 2
ATEN, MKLDNN, PREPACKED = torch.ops.aten, torch.ops.mkldnn, torch.ops.mkldnn_prepacked
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # numbers of mallopt


class Convolution:
    """The products of a layer without bias for inputs of these sizes."""

    def __init__(self, layer, sizes):
        self.sizes, self.weight_sizes = list(sizes), list(layer.weight.shape)
        self.stride, self.padding, self.dilation = list(layer.stride), list(layer.padding), list(layer.dilation)
        self.groups = layer.groups
        self.result_sizes = list(self.forward(torch.zeros(sizes), torch.zeros(self.weight_sizes)).shape)
        # What a transposed convolution has to be told: rows of the input that no window reached.
        self.unread = [
            size - ((out - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1)
            for size, out, kernel, stride, pad, dilation in zip(
                self.sizes[2:],
                self.result_sizes[2:],
                self.weight_sizes[2:],
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        ]

    def key(self):
        weight, sizes = "x".join(map(str, self.weight_sizes)), "x".join(map(str, self.sizes))
        return f"{weight}, stride {self.stride[0]}, of {sizes}"

    def forward(self, x, weight):
        return F.conv2d(x, weight, None, self.stride, self.padding, self.dilation, self.groups)

    def pack(self, weight):
        rest = (self.stride, self.padding, self.dilation, self.groups, self.sizes, "none")
        return PREPACKED.conv2d_prepack(weight, None, *rest)

    def packed_forward(self, x, packed):
        return PREPACKED.conv2d_run(x, packed)

    def gradients(self, gradient, x, weight, of_input, of_weight):
        rest = (self.stride, self.padding, self.dilation, False, [0, 0], self.groups, [of_input, of_weight, False])
        return ATEN.convolution_backward(gradient, x, weight, None, *rest)[:2]

    def pack_transposed(self, weight):
        rest = (self.padding, self.unread, self.stride, self.dilation, self.groups)
        return MKLDNN._reorder_convolution_transpose_weight(weight, *rest)

    def packed_input_gradient(self, gradient, packed):
        """In oneDNN's own layouts, or with channels last, which is another kernel where the stride is 1. ATen checks
        the sizes of a packed weight as if it were plain: the first form needs equal numbers of channels."""
        if self.weight_sizes[0] == self.weight_sizes[1]:
            rest = (self.stride, self.padding, self.dilation, True, self.unread, self.groups)
            return ATEN.convolution(gradient.to_mkldnn(), packed, None, *rest).to_dense()
        rest = (self.padding, self.unread, self.stride, self.dilation, self.groups, "none", [], "")
        return MKLDNN._convolution_transpose_pointwise(gradient, packed, None, *rest).contiguous()


class PackedLayer(torch.nn.Module):
    """In place of a convolution: packs at its first use after repack()."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.convolution = None
        self.packs = 0
        self.repack()

    def repack(self):
        self.packed = self.transposed = None

    def forward(self, x):
        weight = self.layer.weight
        if self.packed is None:
            self.convolution = self.convolution or Convolution(self.layer, x.shape)
            with torch.no_grad():
                self.packed = self.convolution.pack(weight)
                self.transposed = self.convolution.pack_transposed(weight) if x.requires_grad else None
            self.packs += 1
        return PackedProducts.apply(x, weight, self)


class PackedProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, layer):
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return layer.convolution.packed_forward(x, layer.packed)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        convolution, gradient = ctx.layer.convolution, gradient.contiguous()
        of_weight = convolution.gradients(gradient, x, weight, of_input=False, of_weight=True)[1]
        of_input = None
        if ctx.needs_input_grad[0]:
            of_input = convolution.packed_input_gradient(gradient, ctx.layer.transposed)
        return of_input, of_weight, None


def timed(clock, call, *args):
    begin = clock()
    result = call(*args)
    return clock() - begin, result


def compare(weights, plain, pack, packed, clock):
    """Of one product: times, and whether both forms give the same bits."""
    blocked = [pack(weight) for weight in weights]
    packs, plains, ratios, same = [], [], [], True
    for pair in range(max(FEWEST_PAIRS, 2 * len(weights))):
        at, other = pair % len(weights), (pair + len(weights) // 2) % len(weights)
        first, result = timed(clock, plain, weights[at])
        second, _ = timed(clock, packed, blocked[other])
        if pair < len(weights):
            same = same and torch.equal(result, packed(blocked[at]))
            packs.append(timed(clock, pack, weights[at])[0])
        if pair:  # the first makes oneDNN's primitives
            plains.append(first)
            ratios.append(second / first)
    usual = median(plains)
    return {
        "plain_us": usual * 1e6,
        "packed": median(ratios),
        "packing": median(packs) / usual,
        "same_bits": same,
    }


def weights_of(convolution):
    elements = torch.Size(convolution.weight_sizes).numel()
    return [torch.randn(convolution.weight_sizes) for _ in range(min(100, max(3, WORKING_SET // (4 * elements))))]


def measure_forward(convolution, clock):
    x = torch.randn(convolution.sizes)
    return compare(
        weights_of(convolution),
        lambda weight: convolution.forward(x, weight),
        convolution.pack,
        lambda packed: convolution.packed_forward(x, packed),
        clock,
    )


def measure_input_gradient(convolution, clock):
    x, gradient = torch.randn(convolution.sizes), torch.randn(convolution.result_sizes)
    return compare(
        weights_of(convolution),
        lambda weight: convolution.gradients(gradient, x, weight, of_input=True, of_weight=False)[0],
        convolution.pack_transposed,
        lambda packed: convolution.packed_input_gradient(gradient, packed),
        clock,
    )


def measure_weight_gradient(convolution, clock):
    x, gradient = torch.randn(convolution.sizes), torch.randn(convolution.result_sizes)
    weights, plains, moves = weights_of(convolution), [], []
    blocked = [convolution.pack_transposed(weight) for weight in weights]
    for pair in range(max(FEWEST_PAIRS, 2 * len(weights))):
        at = pair % len(weights)
        first, _ = timed(clock, convolution.gradients, gradient, x, weights[at], False, True)
        second, _ = timed(clock, blocked[at].to_dense)
        if pair:
            plains.append(first)
            moves.append(second / first)
    return {"plain_us": median(plains) * 1e6, "out_of_blocks": median(moves)}


def convolutions(workload, samples):
    """The distinct convolutions of a model: what each is, whether its input has a gradient, how often it occurs."""
    count, found = Counter(), {}

    def look(layer, args):
        convolution = Convolution(layer, args[0].shape)
        count[convolution.key()] += 1
        found[convolution.key()] = (convolution, args[0].requires_grad)

    model = workload.model()
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_pre_hook(look)
    model(*(tensor[:samples] for tensor in workload.batch(0)))
    return [(*found[key], count[key]) for key in found]


def show(product, convolution, count, row):
    bits = {True: "same bits", False: "other bits", None: ""}[row.get("same_bits")]
    packed = f"{row['packed']:7.3f}" if "packed" in row else " " * 7
    moved = row.get("packing", row.get("out_of_blocks"))
    print(
        f"{convolution.key():45} x{count} {product:15} {row['plain_us']:9.1f} {packed} {moved:8.3f}  {bits}", flush=True
    )


def measure_products(workload, clock):
    rows = {}
    for convolution, has_gradient, count in convolutions(workload, workload.micro_batch):
        row = rows[convolution.key()] = {"count": count, "forward": measure_forward(convolution, clock)}
        if has_gradient:
            row["input gradient"] = measure_input_gradient(convolution, clock)
        row["weight gradient"] = measure_weight_gradient(convolution, clock)
        for product in list(row)[1:]:
            show(product, convolution, count, row[product])
    return rows


def replace_convolutions(module):
    """The packed layers that took the place of all convolutions without bias."""
    layers = []
    for name, child in module.named_children():
        if isinstance(child, torch.nn.Conv2d) and child.bias is None:
            layers.append(PackedLayer(child))
            setattr(module, name, layers[-1])
        else:
            layers += replace_convolutions(child)
    return layers


class Eager(systems.Eager):
    """Steps and predictions of one model; packed: with packed convolutions."""

    def __init__(self, workload, threads, packed):
        super().__init__(workload, threads)
        self.layers = replace_convolutions(self.model) if packed else []

    def repack(self):
        for layer in self.layers:
            layer.repack()

    def step(self, x, target):
        self.repack()
        return super().step(x, target)

    @torch.no_grad()
    def predict(self, x, target):
        self.repack()
        return torch.stack(
            [self.model(*rows) for rows in zip(x.split(self.size), target.split(self.size), strict=True)]
        )


def in_turns(workload, calls, steps, clock):
    """The same batches by the plain call and by the packed one, one after the other."""
    plains, ratios, same = [], [], True
    for step in range(WARM_STEPS + steps):
        (first, plain), (second, packed) = (timed(clock, call, *workload.batch(step)) for call in calls)
        same = same and torch.equal(plain, packed)
        if step >= WARM_STEPS:
            plains.append(first)
            ratios.append(second / first)
    return {"plain_ms": median(plains) * 1e3, "packed": median(ratios), "ratios": sorted(ratios), "same_bits": same}


def measure_whole(workload, threads, trains, steps, clock):
    """Of two models, steps of training or else predictions."""
    plain, packed = (Eager(workload, threads, is_packed) for is_packed in (False, True))
    if not trains:
        plain.model.eval()
        packed.model.eval()
    calls = [plain.step, packed.step] if trains else [plain.predict, packed.predict]
    found = in_turns(workload, calls, steps, clock)
    pairs = zip(plain.model.parameters(), packed.model.parameters(), strict=True)
    found["same_bits"] = found["same_bits"] and all(torch.equal(a, b) for a, b in pairs)
    packs = sum(layer.packs for layer in packed.layers) / (WARM_STEPS + steps)
    return {**found, "packs_per_step": packs}


def measure_devices(workload, threads, steps, clock):
    """Predictions of our own: fusion("off") is plain, "exact" packs at the first micro-batch of a step."""
    import abele

    executors = []
    for fusion in ("off", "exact"):
        options = abele.Options().fusion(fusion).deviceIterations(MICRO_BATCHES)
        options._Popart.set("abele.threadsPerDevice", threads)
        options.showCompilationProgressBar(False)
        executors.append(abele.inferenceModel(torch.nn.Sequential(*workload.model().parts).eval(), options))
    found = in_turns(workload, [lambda x, _, run=run: run(x) for run in executors], steps, clock)
    for executor in executors:
        executor.destroy()
    return found


def keep_freed_memory():
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, 32 << 20)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workload", default="resnet-small")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="pairs of steps and of predictions (default 20)")
    parser.add_argument("--json", type=Path, help="default: bench/results/packed_convolutions-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    workload = WORKLOADS[args.workload]
    clock = time.perf_counter
    if args.threads == 1:
        # Backward runs on a thread of its own.
        clock = time.process_time
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "threads": args.threads}
    torch.manual_seed(0)
    rows = {
        "training": measure_whole(workload, args.threads, True, args.steps, clock),
        "predictions": measure_whole(workload, args.threads, False, args.steps, clock),
        "our predictions": measure_devices(workload, args.threads, args.steps, clock),
    }
    result |= rows
    for name, row in rows.items():
        bits = "same bits" if row["same_bits"] else "other bits"
        print(f"{name}: plain {row['plain_ms']:.1f} ms, packed / plain {row['packed']:.3f}, {bits}", flush=True)
    print("weight, stride, input                            product          plain us  packed  packing")
    result["products"] = measure_products(workload, clock)
    path = args.json or RESULTS / f"packed_convolutions-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    sys.exit(main())
