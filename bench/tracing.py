"""What does tracing cost: model.trace and PVTI_OPTIONS on, against off?

    ./dev bench tracing                        the five workloads, one device of 2 threads, and two devices
    ./dev bench tracing --workloads deep-narrow --setups 2x1 --rounds 40

For each workload and setup one process has two models of the same weights: one compiled without PVTI_OPTIONS, one while
it is set. A round is four samples in changing order: `off` and `again`, the first model as it is; `trace`, steps of the
first model that model.trace records; `pvti`, the second model. The figure of a way is the median over the rounds of its
time divided by that of `off` in the same round, minus one, once of wall-clock time and once of processor time; `again`
says what is noise. The quartiles are beside it. `ends` is what a trace takes once: to begin, and to predict and write
behind its last step. Losses of both models must be the same bits, and every step must be in the files. Goal: at most
1 % on, 0 off, on a machine that does nothing else.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from support import results
from support.machine import busy_seconds
from support.systems import Compiled
from support.workloads import MICRO_BATCHES, WORKLOADS

WAYS = ("off", "again", "trace", "pvti")
GOAL = 0.01


class Models:
    """Both models of a workload, and the files that they write."""

    def __init__(self, workload, setup, folder):
        self.folder = folder
        self.batches = [workload.batch(step) for step in range(4)]
        self.losses = {"plain": [], "pvti": []}
        self.ends = []  # seconds
        os.environ.pop("PVTI_OPTIONS", None)
        plain = self._compiled(setup, workload)
        os.environ["PVTI_OPTIONS"] = json.dumps({"enable": "true", "directory": str(folder)})
        traced = self._compiled(setup, workload)
        del os.environ["PVTI_OPTIONS"]
        self.of = {"off": plain, "again": plain, "trace": plain, "pvti": traced}
        self.traces = 0

    def _compiled(self, setup, workload):
        devices, threads = (int(number) for number in setup.split("x"))
        model = Compiled(workload, devices, threads, shared=True).model
        model.compile(*self.batches[0])
        return model

    def sample(self, way, steps):
        """(wall-clock seconds, processor seconds) of this many steps; appends their losses."""
        if way != "trace":
            return self._steps(way, steps)
        self.traces += 1
        begin = time.perf_counter()
        self.of[way].trace(self.folder / f"{self.traces}.json", steps=steps + 2)
        begin = time.perf_counter() - begin
        self._steps(way, 1)
        wall, cpu = self._steps(way, steps)
        self.ends.append(begin + self._steps(way, 1)[0] - wall / steps)
        return wall, cpu

    def _steps(self, way, steps):
        model, losses = self.of[way], self.losses["pvti" if way == "pvti" else "plain"]
        first = len(losses)
        wall, cpu = time.perf_counter(), time.process_time()
        losses += [model(*self.batches[step % len(self.batches)]) for step in range(first, first + steps)]
        return time.perf_counter() - wall, time.process_time() - cpu


def calls_in(path):
    text = path.read_text()
    whole = json.loads(text if text.rstrip().endswith("]}") else text + "]}")
    return sum(event["ph"] == "X" and event["name"].startswith("call ") for event in whole["traceEvents"])


def serve(pipe, setup, workload_name, rounds, steps):
    workload = WORKLOADS[workload_name]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = Models(workload, setup, folder)
        models.sample("off", 2)
        models.sample("pvti", 2)
        taken = {way: [] for way in WAYS}
        for turn in range(rounds):
            order = WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]
            for way in order if turn // len(WAYS) % 2 == 0 else reversed(order):
                wall, cpu = models.sample(way, steps)
                taken[way].append((wall / steps, cpu / steps))
        same = all(torch.equal(a, b) for a, b in zip(*models.losses.values(), strict=False))
        traced = sum(calls_in(path) for path in folder.glob("*.json"))
        size = statistics.mean(path.stat().st_size for path in folder.glob("*.json")) / (steps + 2)
        pipe.send(
            {
                "taken": taken,
                "same": same,
                "complete": traced == rounds * (steps + 2),
                "ends_ms": statistics.median(models.ends) * 1e3,
                "bytes_a_step": round(size),
                "cpu_s": time.process_time(),
            }
        )


def overheads(taken):
    """By way: median and quartiles of its share beyond `off`, of wall-clock and of processor time."""
    result = {}
    for way in WAYS[1:]:
        for kind, name in enumerate(("wall", "cpu")):
            shares = [a[kind] / b[kind] - 1 for a, b in zip(taken[way], taken["off"], strict=True)]
            result[f"{way}_{name}"] = statistics.quantiles(shares, n=4)
    return result


def measure(workload, setup, rounds):
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    begin, busy = time.perf_counter(), busy_seconds()
    process = context.Process(target=serve, args=(theirs, setup, workload.name, rounds, workload.steps), daemon=True)
    process.start()
    theirs.close()
    found = pipe.recv()
    process.join()
    others = (busy_seconds() - busy - found["cpu_s"]) / ((time.perf_counter() - begin) * os.cpu_count())
    return {
        "off_ms": statistics.median(wall for wall, _ in found["taken"]["off"]) * 1e3,
        "overhead": overheads(found["taken"]),
        "rounds": rounds,
        "steps": workload.steps,
        "others": others,
        "same_losses": found["same"],
        "complete": found["complete"],
        "bytes_a_step": found["bytes_a_step"],
        "ends_ms": found["ends_ms"],
    }


def show(name, setup, row):
    def text(key):
        low, middle, high = (100 * share for share in row["overhead"][key])
        return f"{middle:+5.1f} ({low:+5.1f} {high:+5.1f})"

    cells = "  ".join(text(f"{way}_{kind}") for way in WAYS[1:] for kind in ("wall", "cpu"))
    wrong = "" if row["same_losses"] else "  losses DIFFER"
    wrong += "" if row["complete"] else "  traces LACK calls"
    rest = f"{row['ends_ms']:7.1f}  {100 * row['others']:4.0f} %{wrong}"
    print(f"{name:12} {setup:4} {row['off_ms']:7.1f}  {cells}  {rest}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--setups", default="1x2,2x1", help="DxT: devices x threads (default 1x2,2x1)")
    parser.add_argument("--rounds", type=int, default=24, help="samples of each way (default 24)")
    parser.add_argument("--json", type=Path, help="default: bench/results/tracing-<date>.json")
    args = parser.parse_args()
    result = results.begin(workloads={})
    print(
        f"{MICRO_BATCHES} micro-batches a step; % beyond `off`: median (quartiles); others: their share of the machine"
    )
    columns = "  ".join(f"{f'{way} {kind}':21}" for way in WAYS[1:] for kind in ("wall", "cpu"))
    print(f"{'workload':12} {'':4} {'off ms':>7}  {columns}  ends ms  others")
    for name in args.workloads.split(","):
        rows = {setup: measure(WORKLOADS[name], setup, args.rounds) for setup in args.setups.split(",")}
        result["workloads"][name] = rows
        for setup, row in rows.items():
            show(name, setup, row)
    rows = [row for rows in result["workloads"].values() for row in rows.values()]
    for key in ("trace_wall", "trace_cpu", "pvti_wall", "pvti_cpu"):
        middle = statistics.median(row["overhead"][key][1] for row in rows)
        print(f"{key.replace('_', ', ')}: median of all {100 * middle:+.2f} %; goal {100 * GOAL:.0f} %")
    results.write(result, args.json, "tracing")
    return 0 if all(row["same_losses"] and row["complete"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
