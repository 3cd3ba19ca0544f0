"""What share of its kernels' own time does a training step reach?

    ./dev bench limit                          the small workloads, one device of 2 threads, of 1, and two devices
    ./dev bench limit --workloads gpt-small --setups 1x2 --operators 12

The limit of a step is the sum of what its instructions take at least, when they run alone and in order on the step's
own memory (bench/replay.cc): no host, no waits, no other device. Of several devices it is the sum of the busiest one.
share: limit / step. The hot limit is the same with each instruction three times in a row, and the least of them: its
operands are in the caches then. Steps and replays take turns; a share above 1 says that the machine was busy while it
stepped. With --fusion off the same without joined instructions.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from support import results
from support.machine import built
from support.published import named, stem
from support.systems import Compiled

TARGETS = ("abele_python", "abele-replay")
HEAD = "workload        setup  fusion   step ms  limit ms  share  hot ms  share  instructions  ns each"
WARM_STEPS = 3
REPEATS = 3  # an instruction's operands are in the caches then


class Replay:
    """An executable and its inputs as files, which the replayer reads."""

    def __init__(self, text, batch, threads, folder):
        self.files = [folder / "executable.abt"]
        self.files[0].write_text(text)
        for index, tensor in enumerate(batch):
            self.files.append(folder / f"input{index}")
            self.files[-1].write_bytes(tensor.contiguous().numpy().tobytes())
        self.threads = threads

    def run(self, steps, repeats=1):
        command = [built("abele-replay"), self.files[0], str(self.threads), str(steps), str(repeats), *self.files[1:]]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(workload, setup, fusion, turns, steps):
    devices, threads = (int(number) for number in setup.split("x"))
    system = Compiled(workload, devices, threads, fusion=fusion)
    batch = workload.batch(0)
    for _ in range(WARM_STEPS):
        system.step(*batch)
    text = system.model._native.session().executableText()
    times, limits, hot_limits, operators = [], [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(text, batch, threads, Path(folder))
        for _ in range(turns):
            for _ in range(steps):
                begin = time.perf_counter()
                system.step(*batch)
                times.append(time.perf_counter() - begin)
            found = replay.run(WARM_STEPS + steps)
            limits.append(max(found["worker_ns"]) / 1e9)
            hot_limits.append(max(replay.run(WARM_STEPS, REPEATS)["worker_ns"]) / 1e9)
            for operator, sums in found["operators"].items():
                best = operators.setdefault(operator, sums)
                best["ns"] = min(best["ns"], sums["ns"])
    calls = sum(sums["calls"] for sums in operators.values())
    step, limit, hot = statistics.median(times), min(limits), min(hot_limits)
    return {
        "step_ms": step * 1e3,
        "least_step_ms": min(times) * 1e3,
        "limit_ms": limit * 1e3,
        "share": limit / step,
        "hot_limit_ms": hot * 1e3,
        "hot_share": hot / step,
        "instructions": calls,
        "operators": operators,
    }


def show(name, setup, fusion, row, most):
    print(
        f"{name:14} {setup:>6} {fusion:>7} {row['step_ms']:9.1f} {row['limit_ms']:9.1f} {row['share']:6.2f} "
        f"{row['hot_limit_ms']:7.1f} {row['hot_share']:6.2f} "
        f"{row['instructions']:13} {row['step_ms'] * 1e6 / row['instructions']:8.0f}",
        flush=True,
    )
    ordered = sorted(row["operators"].items(), key=lambda item: -item[1]["ns"])
    for operator, sums in ordered[:most]:
        print(f"    {sums['ns'] / 1e6:9.2f} ms {sums['calls']:6} x {operator}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="small", help="small (default), published, or names with commas")
    parser.add_argument("--setups", default="1x2,1x1,2x1", help="DxT: devices x threads (default 1x2,1x1,2x1)")
    parser.add_argument("--fusion", default="exact", help="exact, off, or both: exact,off")
    parser.add_argument("--turns", type=int, default=3, help="turns of steps and a replay (default 3)")
    parser.add_argument("--steps", type=int, default=5, help="steps in a turn (default 5)")
    parser.add_argument("--operators", type=int, default=0, help="show so many operators of each")
    parser.add_argument("--json", type=Path, help="default: bench/results/limit[-published]-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    torch.manual_seed(0)
    result = results.begin(workloads={})
    print(HEAD)
    for workload in named(args.workloads):
        rows = result["workloads"].setdefault(workload.name, {})
        for setup in args.setups.split(","):
            for fusion in args.fusion.split(","):
                row = measure(workload, setup, fusion, args.turns, args.steps)
                rows.setdefault(setup, {})[fusion] = row
                show(workload.name, setup, fusion, row, args.operators)
    results.write(result, args.json, stem("limit", args.workloads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
