"""Does a model with four times the device's memory train in that memory, and at what speed?

    ./dev bench phased [--budget-mib 512] [--width 704] [--batch 4] [--length 128] [--steps 5] [--folder DIR]

A transformer whose weights and AdamW state take four times the budget, a layer a phase on one device, in three
processes that take turns, a step each: `unphased` has everything in memory; `phased` has weights, gradient sums,
optimizer state and activations in a file (offChipMemoryLimit(0)); `offloaded` is that, and the own copy that the module
has of its weights is in a file too (abele.offload). Losses must be the same bits. Memory is what the process has
resident at most during the steps (VmHWM, reset before the first of them), also split into what it had before
compilation and the growth. Goals: the resident memory of the process within the budget and a quarter, a step within
1.5 x the unphased one.
"""

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path

import torch
from support.machine import busy_seconds
from support.results import write_if_asked
from torch import nn

MIB = 1 << 20
CLASSES = 16
SYSTEMS = ("unphased", "phased", "offloaded")


class Net(nn.Module):
    """Layers of a transformer, each a block of its own."""

    def __init__(self, layers, width, heads):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(width, CLASSES)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, target):
        import poptorch

        for index, layer in enumerate(self.layers):
            with poptorch.Block(str(index)):
                x = layer(x)
                if index == len(self.layers) - 1:
                    return self.loss(self.head(x.mean(1)), target)


def status(field):
    """A field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def num_layers(args):
    """As many as make weights and optimizer state four times the budget."""
    per_layer = 3 * 4 * (12 * args.width**2 + 13 * args.width)
    return round(4 * args.budget_mib * MIB / per_layer)


def make_executor(name, model, args):
    import abele
    import poptorch

    blocks = [str(index) for index in range(len(model.layers))]
    options = poptorch.Options().showCompilationProgressBar(False)
    if name == "unphased":
        options.setExecutionStrategy(poptorch.ShardedExecution(*(poptorch.Stage(b).ipu(0) for b in blocks)))
    else:
        strategy = poptorch.SerialPhasedExecution(*blocks)
        options.setExecutionStrategy(strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd))
        options.offChipMemoryLimit(0)
        if args.folder:
            options.offChipFolder(args.folder)
    if name == "offloaded":
        abele.offload(model, args.folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return lambda: poptorch.trainingModel(model, options, optimizer)


def serve(pipe, name, args):
    """One system: compiles, then does a step whenever it is asked."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    imported = status("VmRSS")
    model = Net(num_layers(args), args.width, args.width // 64)
    make = make_executor(name, model, args)
    before = status("VmRSS")
    torch.manual_seed(1)
    batch = torch.randn(args.batch, args.length, args.width), torch.randint(CLASSES, (args.batch,))
    Path("/proc/self/clear_refs").write_text("5")  # the model was in memory before it was offloaded
    begin = time.perf_counter()
    executor = make()
    executor.compile(*batch)
    executor(*batch)  # the first step fills caches of the allocator
    compiled = {"imported": imported, "before": before, "compile_peak": status("VmHWM")}
    compiled["compile_and_first_step_s"] = time.perf_counter() - begin
    Path("/proc/self/clear_refs").write_text("5")
    pipe.send(compiled)
    while pipe.recv() == "step":
        begin = time.perf_counter()
        loss = executor(*batch)
        pipe.send((time.perf_counter() - begin, loss.item()))
    report = executor.report()
    pipe.send(
        {
            "cpu_s": time.process_time(),
            "resident_peak": status("VmHWM"),
            "resident_after": status("VmRSS"),
            "anonymous_after": status("RssAnon"),
            "file_after": status("RssFile"),
            "device_peak": max(stage["peak_bytes"] for stage in report["stages"]),
            "off_chip": report["off_chip_bytes"],
            "off_chip_file": report["off_chip_file_bytes"],
            "weights_and_state": 3 * sum(p.numel() * p.element_size() for p in model.parameters()),
        }
    )


def measure(args):
    context = multiprocessing.get_context("spawn")
    pipes, processes, results = {}, [], {}
    for name in args.systems:
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, name, args), daemon=True)
        process.start()
        processes.append(process)
        theirs.close()
        results[name] = ours.recv()
        pipes[name] = ours
    times = {name: [] for name in pipes}
    losses = {name: [] for name in pipes}
    for _ in range(args.steps):
        for name, pipe in pipes.items():
            pipe.send("step")
            seconds, loss = pipe.recv()
            times[name].append(seconds)
            losses[name].append(loss)
    for name, pipe in pipes.items():
        pipe.send("report")
        results[name] |= pipe.recv() | {"times_s": times[name], "losses": losses[name]}
    for process in processes:
        process.join()
    return results


def show(results, args, others):
    budget = args.budget_mib * MIB
    reference = results.get("unphased")
    print(
        f"{num_layers(args)} layers of width {args.width}; budget {args.budget_mib} MiB; others used {others:.2f} cores"
    )
    for name, r in results.items():
        median = statistics.median(r["times_s"])
        growth = r["resident_peak"] - r["before"]
        print(
            f"{name:10} step {median:6.2f} s"
            + (f" = {median / statistics.median(reference['times_s']):.2f} x" if reference else "")
            + f"; weights + state {r['weights_and_state'] / budget:.2f} x the budget"
            + f"; device {r['device_peak'] / MIB:.0f} MiB, file {r['off_chip_file'] / MIB:.0f} MiB"
        )
        print(
            f"{'':10} resident at most {r['resident_peak'] / MIB:.0f} MiB in the steps = "
            f"{r['resident_peak'] / budget:.2f} x the budget: {r['before'] / MIB:.0f} before compilation (of which "
            f"{r['imported'] / MIB:.0f} Python and torch), growth {growth / MIB:.0f} = {growth / budget:.2f} x; "
            f"while compiling {r['compile_peak'] / MIB:.0f}"
        )
    same = len({tuple(r["losses"]) for r in results.values()}) == 1
    print(f"losses {'equal' if same else 'DIFFER'}; goals: resident <= 1.25 x the budget, step <= 1.50 x")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget-mib", type=int, default=512)
    parser.add_argument("--width", type=int, default=704)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--folder", help="where the files are; default: the system's temporary folder")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    begin, busy = time.perf_counter(), busy_seconds()
    results = measure(args)
    busy = busy_seconds() - busy - time.process_time() - sum(r["cpu_s"] for r in results.values())
    show(results, args, busy / (time.perf_counter() - begin))
    write_if_asked(args, results=results)


if __name__ == "__main__":
    main()
