"""Is a compiled training step of a C++ program faster than LibTorch's own, with the very same losses?

    ./dev bench cpp                            the five workloads, the placement that Abele chooses
    ./dev bench cpp --setups auto,1x2,2x1 --workloads gpt-small --samples 15

bench/train_cpp.cc has the models by torch::nn. Eager, with as many threads as there are cores, and each setup live in
processes of their own and take turns; ratios are those of medians.
Losses of three steps under SGD must equal eager's of as many threads as a device has, bit for bit; of Adam and AdamW
LibTorch's own rounding differs.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from support import results
from support.machine import built
from support.turns import System, take_turns
from support.workloads import WORKLOADS, headline

TARGETS = ("abele-train-cpp",)
HEAD = "workload         setup  taken        ms  eager ms  ratio   best   clean  losses"
WARM_STEPS = 3


def program(what, workload, system):
    return [built("abele-train-cpp"), what, workload, system]


def same_losses(workload, setup):
    found = subprocess.run(program("check", workload, setup), check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(found)["same_losses"]


def measure(workload, setups, samples, patience_s):
    """Results of one workload by setup, after all systems took turns."""
    same = {setup: same_losses(workload.name, setup) for setup in setups}
    systems = {}
    for name in ("eager", *setups):
        systems[name] = System(name, workload.name, program("serve", workload.name, name))
        systems[name].train(0, WARM_STEPS)
    take_turns(list(systems.values()), WARM_STEPS, workload.steps, samples, patience_s)
    eager = systems["eager"]
    return {
        setup: {
            "ms": systems[setup].median(samples) * 1e3,
            "eager_ms": eager.median(samples) * 1e3,
            "ratio": systems[setup].median(samples) / eager.median(samples),
            "best_ratio": min(systems[setup].kept(samples)) / min(eager.kept(samples)),
            "taken": systems[setup].placement,
            "same_losses": same[setup],
            "samples": len(systems[setup].samples),
            "clean": len(systems[setup].clean()),
            "all_samples": systems[setup].samples,
            "eager_samples": eager.samples,
            "peak_mib": systems[setup].peak_mib,
            "eager_peak_mib": eager.peak_mib,
        }
        for setup in setups
    }


def show(name, setup, row):
    print(
        f"{name:14} {setup:>7} {row['taken']:>6} {row['ms']:9.1f} {row['eager_ms']:9.1f} {row['ratio']:6.2f} "
        f"{row['best_ratio']:6.2f} {row['clean']:3}/{row['samples']:<3}  {'same' if row['same_losses'] else 'differ'}",
        flush=True,
    )


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--setups", default="auto", help="auto, or DxT: devices x threads (default auto)")
    parser.add_argument("--samples", type=int, default=9, help="clean samples of each system (default 9)")
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="seconds that a workload may take until its samples are clean (default 60)",
    )
    parser.add_argument("--json", type=Path, help="default: bench/results/cpp-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    setups = args.setups.split(",")
    result = results.begin(workloads={})
    print(HEAD)
    for name in args.workloads.split(","):
        rows = result["workloads"][name] = measure(WORKLOADS[name], setups, args.samples, args.patience)
        for setup, row in rows.items():
            show(name, setup, row)
    result["geometric_mean"] = {
        setup: statistics.geometric_mean(rows[setup]["ratio"] for rows in headline(result["workloads"]).values())
        for setup in setups
    }
    print(
        "geometric mean without deep-narrow: "
        + ", ".join(f"{setup} {mean:.2f}" for setup, mean in result["geometric_mean"].items())
    )
    results.write(result, args.json, "cpp")
    return 0 if all(row["same_losses"] for rows in result["workloads"].values() for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
