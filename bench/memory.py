"""Where are the bytes of a training step, against eager PyTorch?

    ./dev bench memory [--workloads gpt-small,lstm] [--setups 1x2,1x2/shared,2x1] [--steps 4] [--runs 1] [--json FILE]

The five workloads; a setup DxT is D devices of T threads each, whose devices have copies of the weights, as the
poptorch front end has it; "/shared" lets them work in the model's own, as the abele front end does; "/divided" lets
them share the work of one block, with memories of their own. Every run is a process of its own. "auto" is what
devices("measured") takes; its peak is that of the trials too. "peak" is the largest resident set of the process
(VmHWM), "base" what is resident once model, batches and optimizer are there and nothing ran. The plan's bytes by
class, of all devices, are exact and the same on every machine. Losses must be the same bits.
"""

import argparse
import os
import statistics
import sys
from pathlib import Path

from support.machine import peak_bytes
from support.published import find, named
from support.results import run_apart, write_if_asked
from support.systems import Compiled, Eager

MIB = 1 << 20
CLASSES = ("weights", "optimizer_state", "accumulators", "constants", "stash", "transient")


def resident():
    """Pages of this process in memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def planned(model):
    """Bytes by class, of all devices together."""
    devices = model.memoryReport()["devices"]
    report = model.report()
    return {name: sum(d["by_class"][name] for d in devices) for name in devices[0]["by_class"]} | {
        "workspaces": report["workspace_bytes"],
        "shared": report["shared_weight_bytes"],
        "schedule": report["schedule"],
        "of devices": {stage["device"]: stage["peak_bytes"] for stage in report["stages"]},
    }


def train(pipe, setup, workload_name, steps):
    workload = find(workload_name)
    batches = [workload.batch(step) for step in range(4)]
    kind, _, way = setup.partition("/")
    if kind.startswith("eager"):
        system = Eager(workload, int(kind.partition("-")[2]))
    else:
        devices, threads = map(int, kind.split("x")) if kind != "auto" else (None, os.cpu_count())
        divided = way == "divided"
        own = (lambda options: options.separateMemory(True)) if divided else None
        system = Compiled(workload, devices, threads, shared=way == "shared", divided=divided, configure=own)
    base = resident()
    losses, first = [], 0
    for step in range(steps):
        losses.append(system.step(*batches[step % len(batches)]).tolist())
        first = first or peak_bytes()
    after = resident()
    pipe.send(
        {
            "base": base,
            "first": first,
            "peak": peak_bytes(),
            "after": after,
            "losses": losses,
            "parameters": sum(p.numel() * p.element_size() for p in workload.model().parameters()),
            "taken": system.placement()["taken"] if kind == "auto" else kind,
            "planned": planned(system.model) if isinstance(system, Compiled) else {},
        }
    )


def eager_of(setup):
    setup = setup.partition("/")[0]
    devices, threads = setup.split("x") if setup != "auto" else (1, os.cpu_count())
    return f"eager-{int(devices) * int(threads)}"


def have_same_losses(rows):
    """Whether systems with the same number of threads a device have the same losses, eager included."""
    by_threads = {}
    for runs in rows.values():
        for run in runs:
            threads = run["taken"].replace("-", "x").split("x")[1]
            by_threads.setdefault(threads, set()).add(tuple(map(tuple, run["losses"])))
    return all(len(losses) == 1 for losses in by_threads.values())


def show(workload, rows, setups):
    for setup in setups:
        peak = {s: statistics.median(run["peak"] for run in rows[s]) for s in (setup, eager_of(setup))}
        run = rows[setup][0]
        plan = run["planned"]
        print(
            f"{workload:12} {setup:10} {peak[setup] / MIB:6.0f} {peak[eager_of(setup)] / MIB:6.0f} "
            f"{peak[setup] / peak[eager_of(setup)]:6.3f} {run['base'] / MIB:6.0f} {run['first'] / MIB:6.0f} "
            f"{run['after'] / MIB:6.0f} {run['parameters'] / MIB:7.1f} "
            + " ".join(f"{plan.get(name, 0) / MIB:8.2f}" for name in (*CLASSES, "workspaces"))
            + f"  {plan['schedule']} "
            + " ".join(f"{peak / MIB:.1f}" for peak in plan["of devices"].values()),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="small", help="small (default), published, or names with commas")
    parser.add_argument("--setups", default="1x2,1x2/shared,2x1,2x1/shared")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    setups = args.setups.split(",")
    print(
        "workload     setup        peak  eager  ratio   base  first  after  params  weights    state     sums   consts"
        "    stash   transi   worksp  schedule, plan of each device (MiB)"
    )
    results = {}
    for workload in [workload.name for workload in named(args.workloads)]:
        systems = [*sorted({eager_of(setup) for setup in setups}), *setups]
        results[workload] = {s: [run_apart(train, s, workload, args.steps) for _ in range(args.runs)] for s in systems}
        show(workload, results[workload], setups)
    write_if_asked(args, results=results)
    same = {workload: have_same_losses(rows) for workload, rows in results.items()}
    print("losses:", "the same" if all(same.values()) else f"the same? {same}")
    return 0 if all(same.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
