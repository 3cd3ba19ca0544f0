"""How well does the simulator tell step time and memory before anything ran?

    ./dev bench simulator                            all models, 32 configurations, on two devices of one thread
    ./dev bench simulator --models lstm --runs 1 --json a.json
    ./dev bench simulator --merge a.json b.json      several files' runs, with the table of docs/simulator.md

Costs come from one run of each model and placement, zero-bubble with 6 micro-batches: two stages, and four stages dealt
round the devices for the interleaved schedule. They predict every configuration of that model; no configuration
predicts itself. Step time is the median of what a caller of the model waits. The run that costs come from takes turns
with the configuration that they predict. Everything is measured --runs times, and all runs are shown. Memory is that of
the fullest device: what the simulator predicted, what the plan reserves, and what of it was in memory after the steps,
in whole pages of the system.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import abele
import torch
from support import results
from support.machine import busy_seconds
from support.pipelines import DEVICES, PIPELINES

CALIBRATION = ("zero-bubble", 6)
CONFIGURATIONS = (  # schedule, micro-batches, stages
    ("sharded", 4, 2),
    ("gpipe", 4, 2),
    ("gpipe", 12, 2),
    ("1f1b", 8, 2),
    ("1f1b", 16, 2),
    ("interleaved", 8, 4),
    ("zero-bubble", 8, 2),
    ("zero-bubble-2", 8, 2),
)
WARM_STEPS, TURN_STEPS = 3, 6
GOALS = {"time": (0.05, 0.15), "memory": (0.02, 0.05)}  # median, worst


class Trained:
    """A compiled model that takes turns with others: the machine's speed drifts by more than the errors looked for."""

    def __init__(self, pipeline, *arguments, **settings):
        self.model, self.batch = pipeline.compile(*arguments, **settings)
        self.samples = []
        for _ in range(WARM_STEPS):
            self.model(*self.batch)

    def turn(self):
        """A few steps, the first of them untimed: it brings the weights back into the caches."""
        for step in range(TURN_STEPS):
            begin = time.perf_counter()
            self.model(*self.batch)
            if step > 0:
                self.samples.append(time.perf_counter() - begin)


def measure(pipeline, seconds):
    """A row for each configuration of a model."""
    schedule, micro_batches = CALIBRATION
    placements = sorted({stages for _, _, stages in CONFIGURATIONS})
    measured = {stages: Trained(pipeline, schedule, micro_batches, stages=stages) for stages in placements}
    for trained in measured.values():
        trained.turn()
    rows = []
    for schedule, micro_batches, stages in CONFIGURATIONS:
        calibration = measured[stages]
        costs = calibration.model.costs()
        trained = Trained(pipeline, schedule, micro_batches, stages=stages, costs=costs)
        cpu, busy, begin = time.process_time(), busy_seconds(), time.perf_counter()
        while time.perf_counter() < begin + seconds or len(trained.samples) < 2 * TURN_STEPS:
            calibration.turn()
            trained.turn()
        wall = time.perf_counter() - begin
        others = max(0.0, busy_seconds() - busy - (time.process_time() - cpu)) / (wall * DEVICES)
        predicted = abele.simulate(calibration.model.costs(), schedule, micro_batches)
        # Orders by time were chosen from the costs before the turns, and with them the rings.
        predicted["peak_bytes"] = abele.simulate(costs, schedule, micro_batches)["peak_bytes"]
        rows.append(row_of(trained, predicted, others, stages))
        show(rows[-1])
    return {"costs": {stages: trained.model.costs() for stages, trained in measured.items()}, "rows": rows}


def row_of(trained, predicted, others, stages):
    report = trained.model.report()
    row = {
        "schedule": predicted["schedule"],
        "micro_batches": predicted["micro_batches"],
        "stages": stages,
        "step_ms": statistics.median(trained.samples) * 1e3,
        "predicted_ms": predicted["step_ns"] / 1e6,
        "peak_bytes": max(stage["peak_bytes"] for stage in report["stages"]),
        "resident_bytes": max(stage["resident_bytes"] for stage in report["stages"]),
        "predicted_bytes": predicted["peak_bytes"],
        "bubble": report["bubble"],
        "predicted_bubble": predicted["bubble"],
        "samples": len(trained.samples),
        "others": others,
    }
    row["time_error"] = row["predicted_ms"] / row["step_ms"] - 1
    row["memory_error"] = row["predicted_bytes"] / row["peak_bytes"] - 1
    return row


def show(row):
    print(
        f"  {row['schedule']:16} {row['micro_batches']:3} {row['step_ms']:9.2f} "
        f"{row['predicted_ms']:9.2f} {row['time_error']:+7.1%} {row['peak_bytes'] / 2**20:8.2f} "
        f"{row['predicted_bytes'] / 2**20:8.2f} {row['memory_error']:+7.1%} {row['resident_bytes'] / 2**20:8.2f} "
        f"{row['others']:7.1%}",
        flush=True,
    )


def summary(rows):
    """Median and worst error of each kind, and whether they are within the goals."""
    result = {}
    for kind, (median_goal, worst_goal) in GOALS.items():
        errors = [abs(row[f"{kind}_error"]) for row in rows]
        median, worst = statistics.median(errors), max(errors)
        result[kind] = {"median": median, "worst": worst, "good": median <= median_goal and worst <= worst_goal}
        print(
            f"{kind:7} error: median {median:.1%} (goal {median_goal:.0%}), worst {worst:.1%} (goal {worst_goal:.0%}), "
            f"{len(errors)} configurations"
        )
    return result


def table(models):
    """Markdown: measured and predicted ms of every run, and MiB: predicted, reserved, in memory."""
    print(f"\n| schedule, micro-batches | {' | '.join(models)} |\n|---|{'---|' * len(models)}")
    for index, (schedule, micro_batches, _) in enumerate(CONFIGURATIONS):
        cells = []
        for runs in models.values():
            rows = [run["rows"][index] for run in runs]
            times = "; ".join(f"{r['step_ms']:.1f} / {r['predicted_ms']:.1f} ({r['time_error']:+.1%})" for r in rows)
            memory = [max(r[key] for r in rows) / 2**20 for key in ("predicted_bytes", "peak_bytes", "resident_bytes")]
            cells.append(f"{times}; {' / '.join(f'{mib:.2f}' for mib in memory)} MiB")
        print(f"| `{schedule}`, {micro_batches} | {' | '.join(cells)} |")
    print()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(PIPELINES))
    parser.add_argument("--seconds", type=float, default=2, help="samples of one configuration (default 2)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--merge", nargs="+", type=Path, help="result files to put together instead of measuring")
    parser.add_argument("--json", type=Path, help="default: bench/results/simulator-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    print("  schedule           m   step ms predicted   error      MiB predicted  error   in mem.  others")
    if args.merge:
        parts = [json.loads(file.read_text()) for file in args.merge]
        result = {**parts[0], "models": {}}
        for part in parts:
            for name, runs in part["models"].items():
                result["models"].setdefault(name, []).extend(runs)
        for name, runs in result["models"].items():
            for number, run in enumerate(runs):
                print(f"{name}, run {number}")
                for row in run["rows"]:
                    show(row)
    else:
        result = results.begin(models={})
        for number in range(args.runs):
            for name in args.models.split(","):
                print(f"{name}, run {number}")
                result["models"].setdefault(name, []).append(measure(PIPELINES[name], args.seconds))
    table(result["models"])
    for number in range(max(len(runs) for runs in result["models"].values())):
        print(f"run {number}")
        summary([row for runs in result["models"].values() for run in runs[number : number + 1] for row in run["rows"]])
    print("all runs")
    result["errors"] = summary([row for runs in result["models"].values() for run in runs for row in run["rows"]])
    results.write(result, args.json, "simulator")
    return 0 if all(error["good"] for error in result["errors"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
