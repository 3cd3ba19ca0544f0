"""What share of oneDNN's time in a training step goes into moving weights, gradients and activations between layouts?

    ./dev bench onednn                          resnet-small and lstm, one device of one thread
    ./dev bench onednn --workloads resnet-small --steps 4

Calls are oneDNN's own record (ONEDNN_VERBOSE), in wall-clock time: on a busy machine long calls look longer than they
are.
"""

import argparse
import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from support.machine import RESULTS, describe
from support.workloads import WORKLOADS

WARM_STEPS = 3
STEPS_BEGIN = "steps begin"


def train(name, steps):
    """Runs in a process of its own, whose output is oneDNN's record."""
    from support.systems import Compiled

    system = Compiled(WORKLOADS[name], devices=1, threads=1)
    batch = WORKLOADS[name].batch(0)
    for step in range(WARM_STEPS + steps):
        if step == WARM_STEPS:
            print(STEPS_BEGIN, flush=True)
        system.step(*batch)


def kind_of(fields):
    """What a line of the record did: a primitive, or between which layouts a reorder moved what."""
    at = fields.index("exec")
    primitive, direction, memory = fields[at + 2], fields[at + 4], fields[at + 5].split(" ")
    if primitive != "reorder":
        return f"{primitive} {direction}"
    plain = ["abcd" in layout for layout in memory[:2]]
    if plain[0] == plain[1]:
        return "reorder, other"
    ways = "plain to blocked" if plain[0] else "blocked to plain"
    return f"reorder, {ways}, {fields[-2]}"


def measure(name, steps):
    command = [sys.executable, __file__, "--train", name, "--steps", str(steps)]
    environment = os.environ | {"ONEDNN_VERBOSE": "profile", "OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
    sums = {}
    for line in output[output.index(STEPS_BEGIN) :].splitlines():
        fields = line.split(",")
        if not line.startswith("onednn_verbose") or "exec" not in fields:
            continue
        row = sums.setdefault(kind_of(fields), {"calls": 0, "ms": 0.0})
        row["calls"] += 1
        row["ms"] += float(fields[-1])
    whole = sum(row["ms"] for row in sums.values())
    for row in sums.values():
        row["share"] = row["ms"] / whole
    return dict(sorted(sums.items(), key=lambda item: -item[1]["ms"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="resnet-small,lstm")
    parser.add_argument("--steps", type=int, default=2, help="steps that are recorded (default 2)")
    parser.add_argument("--json", type=Path, help="default: bench/results/onednn-<date>.json")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        return train(args.train, args.steps)
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "workloads": {}}
    for name in args.workloads.split(","):
        rows = result["workloads"][name] = measure(name, args.steps)
        moved = sum(row["share"] for kind, row in rows.items() if kind.startswith("reorder"))
        print(f"{name}: reorders are {moved:.2f} of oneDNN's time")
        for kind, row in list(rows.items())[:12]:
            print(f"    {row['share']:6.3f} {row['calls']:6} x {kind}", flush=True)
    path = args.json or RESULTS / f"onednn-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")
    return None


if __name__ == "__main__":
    sys.exit(main())
