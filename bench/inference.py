"""How fast are predictions, against eager PyTorch and torch.compile, with eager's bits?

    ./dev bench inference                      the five workloads: a step's eight micro-batches, and one sample alone
    ./dev bench inference --workloads lstm --setups 1x2,2x1/turns --samples 15
    ./dev bench inference --workloads published --single    one sample alone of each published model

A setup DxT is D devices of T threads each, which are a pipeline, or with "/turns" take micro-batches in turn; eager and
torch.compile have D * T threads. "8" rows: one call takes eight micro-batches (deviceIterations; a published model has
fewer), the others loop over them. "1" rows: one call takes one sample, on one device. Systems take turns as in
smoke.py; crowded samples are dropped as there. Outputs must equal, bit for bit, eager's with T threads;
torch.compile's need not.
"""

import argparse
import statistics
import sys
from pathlib import Path

from smoke import CHECKED_STEPS, split
from support import results
from support.published import named, stem
from support.turns import System, take_turns

HEAD = "workload       rows  setup        ms  eager ms  ratio   best  compile ms  ratio   best   clean  bits"
SINGLE_STEPS = 8


def measure(workload, setups, single, samples, patience_s):
    """Results of one workload by setup, after all systems took turns."""
    threads = {d * t for d, t in map(split, setups)} | {t for _, t in map(split, setups)}
    end = "/1" if single else ""
    names = [f"{kind}-{n}" for n in sorted(threads) for kind in ("eager", "compile")]
    systems = {name: System(f"predict-{name}{end}", workload.name) for name in [*names, *setups]}
    steps = workload.steps * (SINGLE_STEPS if single else 1)
    told = {
        name: [system.train(step, 1)["losses"] for step in range(CHECKED_STEPS)] for name, system in systems.items()
    }
    take_turns(list(systems.values()), CHECKED_STEPS, steps, samples, patience_s)
    rows = {}
    for setup in setups:
        devices, each = split(setup)
        ours = systems[setup].kept(samples)
        row = {
            "ms": statistics.median(ours) * 1e3,
            "clean": len(systems[setup].clean()),
            "samples": len(systems[setup].samples),
        }
        for kind in ("eager", "compile"):
            theirs = systems[f"{kind}-{devices * each}"].kept(samples)
            row[f"{kind}_ms"] = statistics.median(theirs) * 1e3
            row[f"{kind}_ratio"] = statistics.median(ours) / statistics.median(theirs)
            row[f"{kind}_best_ratio"] = min(ours) / min(theirs)
        row["same_bits"] = told[setup] == told[f"eager-{each}"]
        rows[setup] = row
    return rows


def show(name, batch, setup, row):
    bits = "same" if row["same_bits"] else "differ"
    print(
        f"{name:14} {batch:4} {setup:>6} {row['ms']:9.2f} {row['eager_ms']:9.2f} {row['eager_ratio']:6.2f} "
        f"{row['eager_best_ratio']:6.2f} {row['compile_ms']:11.2f} {row['compile_ratio']:6.2f} "
        f"{row['compile_best_ratio']:6.2f} {row['clean']:3}/{row['samples']:<3} {bits}",
        flush=True,
    )


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="small", help="small (default), published, or names with commas")
    parser.add_argument("--single", action="store_true", help="only one sample alone")
    parser.add_argument("--setups", default="1x2,2x1", help="DxT[/turns]: devices x threads (default 1x2,2x1)")
    parser.add_argument("--samples", type=int, default=7, help="clean samples of each system (default 7)")
    parser.add_argument("--patience", type=float, default=60, help="seconds that a workload may wait for clean samples")
    parser.add_argument("--json", type=Path, help="default: bench/results/inference[-published]-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    result = results.begin(workloads={})
    print(HEAD)
    for workload in named(args.workloads):
        for batch in (1,) if args.single else (workload.micro_batches, 1):
            setups = [setup for setup in args.setups.split(",") if batch > 1 or split(setup)[0] == 1]
            if not setups:
                continue
            rows = measure(workload, setups, batch == 1, args.samples, args.patience)
            result["workloads"].setdefault(workload.name, {})[batch] = rows
            for setup, row in rows.items():
                show(workload.name, batch, setup, row)
    results.write(result, args.json, stem("inference", args.workloads))
    same = [
        row["same_bits"] for kinds in result["workloads"].values() for rows in kinds.values() for row in rows.values()
    ]
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
