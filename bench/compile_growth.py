"""How does the time to compile grow with the number of layers?

    ./dev bench compile_growth [--layers 1000 2000 5000 10000 20000] [--runs 3] [--json FILE]

A chain of residual layers of width 8, trained with AdamW on one device; every run is a process of its own. A phase's
seconds are those of Session's report; `front end` is what is left of compile(), `first call` the step behind it, and
`cpu` the processor time of compile(), which says more on a busy machine. The exponent is the slope of log seconds over
log layers, fitted to the medians. Goal: at most 1.1 for compile().
"""

import argparse
import math
import statistics
import time

from support.machine import busy_seconds, peak_bytes
from support.results import run_apart, write_if_asked

GOAL = 1.1
WIDTH, BATCH = 8, 4


def compile_once(pipe, layers):
    """Compiles in this process and sends the seconds of each phase."""
    import abele
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x + torch.relu(self.linear(x)) / layers

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*(Layer() for _ in range(layers)))

        def forward(self, x):
            return abele.identity_loss(self.layers(x).square(), reduction="mean")

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    options = abele.Options().showCompilationProgressBar(False)
    executor = abele.trainingModel(model, options, torch.optim.AdamW(model.parameters()))
    x = torch.randn(BATCH, WIDTH)
    begin, cpu = time.perf_counter(), time.process_time()
    executor.compile(x)
    compiled, cpu = time.perf_counter(), time.process_time() - cpu
    executor(x)
    called = time.perf_counter()
    phases = dict(executor.report()["phases"])
    total = compiled - begin
    phases["front end"] = total - sum(phases.values())
    pipe.send(
        {"total": total, "cpu": cpu, "phases": phases, "first call": called - compiled, "peak_bytes": peak_bytes()}
    )


def exponent(seconds_of):
    """Slope of log seconds over log layers; seconds_of: layers -> seconds."""
    points = [(math.log(n), math.log(s)) for n, s in seconds_of.items() if s > 0]
    if len(points) < 2:
        return math.nan
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def columns(run):
    return {"compile": run["total"], "cpu": run["cpu"], **run["phases"], "first call": run["first call"]}


def show(results):
    names = list(columns(next(iter(results.values()))[0]))
    print("layers    " + "".join(f"{name:>12}" for name in names) + "   peak MiB")
    for layers, runs in results.items():
        for run in runs:
            times = "".join(f"{seconds:12.3f}" for seconds in columns(run).values())
            print(f"{layers:<10}{times}{run['peak_bytes'] / 2**20:11.0f}")
    fitted = {}
    for name in names:
        fitted[name] = exponent({n: statistics.median(columns(r)[name] for r in runs) for n, runs in results.items()})
    print("exponent  " + "".join(f"{fitted[name]:12.2f}" for name in names))
    print(f"goal: compile at most {GOAL}: {'met' if fitted['compile'] <= GOAL else 'MISSED'}")
    return fitted


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[1000, 2000, 5000, 10000, 20000])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    begin, busy, own = time.perf_counter(), busy_seconds(), time.process_time()
    results = {layers: [] for layers in args.layers}
    for _ in range(args.runs):  # in turns: the machine's speed drifts
        for layers in args.layers:
            results[layers].append(run_apart(compile_once, layers))
    used = sum(run["cpu"] for runs in results.values() for run in runs)
    others = (busy_seconds() - busy - (time.process_time() - own) - used) / (time.perf_counter() - begin)
    fitted = show(results)
    print(f"others, what else these processes did included, used {max(0.0, others):.2f} cores")
    write_if_asked(args, results=results, exponents=fitted)


if __name__ == "__main__":
    main()
