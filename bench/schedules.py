"""What share of its schedule's own bound does a pipeline reach, and does time follow the work on any number of devices?

    ./dev bench schedules                            all three questions
    ./dev bench schedules --parts bounds --seconds 4

bounds:  equal stages on two devices of one thread, 8 and 32 micro-batches: the step that the schedule would take if
         nothing but the work of its stages took time, against the step that a run takes. GPipe and 1F1B:
         (m + p - 1)(F + B) and the update; others: the simulator without hops, gaps and the host's time. F, B and W are
         measured in the run itself; the whole call of the model counts as the step.
uneven:  stages of unequal work: zero-bubble ordered by measured costs and hops against 1F1B.
devices: the same model on 1, 2, 4 and 8 devices, one thread each, on the cores of this machine: step time against that
         of two devices, and what it would be if time followed the work.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import abele
import torch
from support import results
from support.pipelines import PIPELINES, Pipeline
from support.workloads import ResidualCell, labelled_noise
from torch import nn

GOAL_SHARE = 0.95
CELLS = 32

# Wide enough that an action takes milliseconds; the loss and the head are a small part of the last stage.
EQUAL = Pipeline(
    "equal",
    lambda: [*(ResidualCell(128) for _ in range(CELLS)), nn.Linear(128, 10)],
    labelled_noise((128,), 10),
    micro_batch=128,
    cuts={n: tuple(range(0, CELLS, CELLS // n)) for n in (1, 2, 4, 8)},
)


def turns(models, seconds, turn_steps=6, warm=3):
    """Seconds of each step of each model; they take turns, and the first step of a turn does not count."""
    samples = {name: [] for name in models}
    for model, batch in models.values():
        for _ in range(warm):
            model(*batch)
    until = time.perf_counter() + seconds * len(models)
    while time.perf_counter() < until or len(next(iter(samples.values()))) < turn_steps:
        for name, (model, batch) in models.items():
            for step in range(turn_steps):
                begin = time.perf_counter()
                model(*batch)
                if step > 0:
                    samples[name].append(time.perf_counter() - begin)
    return samples


def bound_ns(costs, schedule, micro_batches):
    """The step if only work took time."""
    work = {"stages": [dict(stage) for stage in costs["stages"]]}
    if schedule in ("gpipe", "1f1b"):
        whole = max(s["forward_ns"] + s["backward_ns"] + s["weight_grad_ns"] for s in work["stages"])
        return (micro_batches + len(work["stages"]) - 1) * whole + max(s["update_ns"] for s in work["stages"])
    return abele.simulate(work, schedule, micro_batches)["step_ns"]


def bounds(seconds):
    rows = []
    print("bounds    schedule         m   step ms  bound ms   share  hop us")
    for micro_batches in (8, 32):
        for schedule, stages in (("gpipe", 2), ("1f1b", 2), ("interleaved", 4), ("zero-bubble", 2)):
            # Each run is measured against what its own actions took.
            first, batch = EQUAL.compile(schedule, micro_batches, stages=stages)
            turns({schedule: (first, batch)}, seconds / 4)
            model, batch = EQUAL.compile(schedule, micro_batches, stages=stages, costs=first.costs())
            samples = turns({schedule: (model, batch)}, seconds)[schedule]
            costs = model.costs()
            row = {
                "schedule": schedule,
                "micro_batches": micro_batches,
                "step_ms": statistics.median(samples) * 1e3,
                "bound_ms": bound_ns(costs, schedule, micro_batches) / 1e6,
                "hop_us": costs["hop_ns"] / 1e3,
                "host_us": costs["host_ns"] / 1e3,
                "samples": len(samples),
            }
            row["share"] = row["bound_ms"] / row["step_ms"]
            rows.append(row)
            print(
                f"          {schedule:14} {micro_batches:3} {row['step_ms']:9.2f} {row['bound_ms']:9.2f} "
                f"{row['share']:7.1%} {row['hop_us']:7.1f}",
                flush=True,
            )
    return rows


def uneven(seconds):
    rows = []
    print("uneven    model         cut    m   1f1b ms     zb ms    zb2 ms   ratio")
    for name, cut in (("transformer", 4), ("transformer", 6), ("deep-narrow", 40), ("equal", 12)):
        pipeline = EQUAL if name == "equal" else PIPELINES[name]
        cuts, micro_batches = (0, cut), 8
        first, batch = pipeline.compile("zero-bubble", micro_batches, cuts=cuts)
        turns({"costs": (first, batch)}, seconds / 2)
        schedules = ("1f1b", "zero-bubble", "zero-bubble-2")
        models = {s: pipeline.compile(s, micro_batches, cuts=cuts, costs=first.costs()) for s in schedules}
        samples = {s: statistics.median(values) * 1e3 for s, values in turns(models, seconds).items()}
        row = {"model": name, "cut": cut, "micro_batches": micro_batches, "step_ms": samples}
        row["ratio"] = samples["zero-bubble"] / samples["1f1b"]
        rows.append(row)
        print(
            f"          {name:12} {cut:4} {micro_batches:4} "
            + " ".join(f"{samples[s]:9.2f}" for s in schedules)
            + f" {row['ratio']:7.3f}",
            flush=True,
        )
    return rows


def devices(seconds):
    """Eight stages of equal work, dealt out to more and more devices."""
    rows, micro_batches = [], 16
    print("devices     d   step ms  ratio   expected  CPU s of a step")
    models = {d: EQUAL.compile("1f1b", micro_batches, stages=8, devices=d) for d in (1, 2, 4, 8)}
    samples = {d: statistics.median(values) for d, values in turns(models, seconds).items()}
    for d, (model, batch) in models.items():
        cpu = time.process_time()
        for _ in range(10):
            model(*batch)
        cpu = (time.process_time() - cpu) / 10
        expected = model.simulate()["step_ns"] / 1e6
        row = {"devices": d, "step_ms": samples[d] * 1e3, "ratio": samples[d] / samples[2], "cpu_ms": cpu * 1e3}
        rows.append({**row, "simulated_ms": expected})
        print(
            f"          {d:3} {row['step_ms']:9.2f} {row['ratio']:6.3f} {expected:9.2f} {row['cpu_ms']:12.2f} ms",
            flush=True,
        )
    return rows


PARTS = {"bounds": bounds, "uneven": uneven, "devices": devices}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=3, help="samples of one configuration (default 3)")
    parser.add_argument("--json", type=Path, help="default: bench/results/schedules-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    result = results.begin()
    for name in args.parts.split(","):
        result[name] = PARTS[name](args.seconds)
    results.write(result, args.json, "schedules")
    good = all(row["share"] >= GOAL_SHARE for row in result.get("bounds", ()))
    return 0 if good and all(row["ratio"] <= 1.02 for row in result.get("uneven", ())) else 1


if __name__ == "__main__":
    sys.exit(main())
