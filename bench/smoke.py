"""Is a compiled training step faster than eager PyTorch, with the very same losses?

    ./dev bench smoke                          the five workloads, one device of 2 threads, of 1, and two devices
    ./dev bench smoke --workloads deep-narrow --setups 1x2 --samples 15
    ./dev bench smoke --setups 1x2,1x2/off     with instructions joined and apart (Options.fusion), in turns
    ./dev bench smoke --setups auto,1x2,2x1    and the number of devices that Abele chooses for the whole machine

A setup DxT is D devices of T threads each. Its ratio is to eager with D * T threads; its losses must equal, bit for
bit, those of eager with T threads. "auto" is AutoSplit.devices("measured") with all cores; a line below it says what
was taken, what a step of each number of devices took while compiling, and that time's ratio to what it took later.
"heap" counts the allocations of tensor memory in the last step. Every system lives in a process of its own; they take
turns, one timed sample each, and the others sleep. A sample is crowded when other programs used more than a twentieth
of the machine; crowded samples are dropped as soon as enough clean ones exist.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from support.machine import busy_seconds, describe
from support.systems import serve
from support.workloads import WORKLOADS

CHECKED_STEPS = 6
CROWDED = 0.05
HEAD = "workload         setup        ms  eager ms  ratio   best   clean first s    MiB  eager  heap  losses"
RESULTS = Path(__file__).resolve().parent / "results"


class System:
    """A process that trains one workload when told to."""

    def __init__(self, name, workload):
        self.name = name
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, name, workload), daemon=True)
        self.process.start()
        theirs.close()
        self.samples = []  # (share of others, seconds a step)
        self.build_s = self.receive()["s"]

    def receive(self):
        reply = self.pipe.recv()
        if "error" in reply:
            raise SystemExit(f"{self.name}: {reply['error']}")
        return reply

    def train(self, first, steps):
        self.pipe.send((first, steps))
        return self.receive()

    def sample(self, first, steps):
        wall, busy = time.perf_counter(), busy_seconds()
        reply = self.train(first, steps)
        wall, busy = time.perf_counter() - wall, busy_seconds() - busy
        others = max(0.0, busy - reply["cpu_s"]) / (wall * os.cpu_count())
        self.samples.append((others, reply["s"] / steps))

    def clean(self):
        return [seconds for others, seconds in self.samples if others < CROWDED]

    def kept(self, wanted):
        """The clean samples, filled up with the least crowded ones to the number wanted."""
        seconds = [seconds for _, seconds in sorted(self.samples)]
        return seconds[: max(wanted, len(self.clean()))]

    def stop(self):
        self.pipe.send(None)
        reply = self.receive()
        self.peak_mib = reply["peak_bytes"] / 2**20
        self.heap_allocations = reply["heap_allocations"]
        self.placement = reply["placement"]
        self.process.join()


def eager_of(threads):
    return f"eager-{threads}"


def split(setup):
    """Devices and threads of each; of "auto" one device, until it says what was taken."""
    setup = setup.partition("/")[0]
    devices, threads = (int(number) for number in setup.split("x")) if setup != "auto" else (1, os.cpu_count())
    return devices, threads


def threads_of(setup):
    """What threads a device of the setup may have."""
    cores = os.cpu_count()
    return [n for n in range(1, cores + 1) if cores % n == 0] if setup.startswith("auto") else [split(setup)[1]]


def take_turns(systems, steps, samples, patience_s):
    """Times all systems, a sample of so many steps each, until they have clean ones enough, and stops them."""
    until, turn = time.monotonic() + patience_s, 0
    while turn < samples or (time.monotonic() < until and any(len(s.clean()) < samples for s in systems)):
        for system in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
            system.sample(CHECKED_STEPS + turn * steps, steps)
        turn += 1
    for system in systems:
        system.stop()


def measure(workload, setups, samples, patience_s):
    """Results of one workload by setup, after all systems took turns."""
    names = sorted(
        {eager_of(d * t) for d, t in map(split, setups)} | {eager_of(t) for s in setups for t in threads_of(s)}
    )
    systems = {name: System(name, workload.name) for name in [*names, *setups]}
    checked = {name: [system.train(step, 1) for step in range(CHECKED_STEPS)] for name, system in systems.items()}
    losses = {name: [reply["losses"][0] for reply in replies] for name, replies in checked.items()}

    take_turns(list(systems.values()), workload.steps, samples, patience_s)
    rows = {}
    for setup in setups:
        devices, threads = split(setup)
        base = systems[eager_of(devices * threads)]
        placement = systems[setup].placement
        if placement:
            threads = split(placement["taken"])[1]
        twin = losses[eager_of(threads)]
        ours, theirs = systems[setup].kept(samples), base.kept(samples)
        pairs = [pair for steps in zip(losses[setup], twin, strict=True) for pair in zip(*steps, strict=True)]
        rows[setup] = {
            "ms": statistics.median(ours) * 1e3,
            "eager_ms": statistics.median(theirs) * 1e3,
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "best_ratio": min(ours) / min(theirs),
            "same_losses": losses[setup] == twin,
            "loss_difference": max(abs(a - b) for a, b in pairs),
            "samples": len(systems[setup].samples),
            "clean": len(systems[setup].clean()),
            "first_step_s": systems[setup].build_s + checked[setup][0]["s"],
            "peak_mib": systems[setup].peak_mib,
            "eager_peak_mib": base.peak_mib,
            "heap_allocations": systems[setup].heap_allocations,
        }
        if placement:
            predicted = placement["measured_ms"][placement["taken"]]
            rows[setup] |= placement | {"predicted_ms": predicted, "predicted_ratio": predicted / rows[setup]["ms"]}
    return rows


def show(name, setup, row):
    same = "same" if row["same_losses"] else f"differ by {row['loss_difference']:.1e}"
    print(
        f"{name:14} {setup:>7} {row['ms']:9.1f} {row['eager_ms']:9.1f} {row['ratio']:6.2f} {row['best_ratio']:6.2f} "
        f"{row['clean']:3}/{row['samples']:<3} {row['first_step_s']:7.2f} {row['peak_mib']:6.0f} "
        f"{row['eager_peak_mib']:6.0f} {row['heap_allocations']:5}  {same}",
        flush=True,
    )
    if "taken" in row:
        found = ", ".join(f"{setup} {ms:.1f}" for setup, ms in row["measured_ms"].items())
        print(
            f"{'':14} taken: {row['taken']}; measured before: {found} ms; {row['predicted_ratio']:.2f} of what it took",
            flush=True,
        )


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--setups", default="1x2,1x1,2x1", help="DxT: devices x threads (default 1x2,1x1,2x1)")
    parser.add_argument("--samples", type=int, default=7, help="clean samples of each system (default 7)")
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="seconds that a workload may take until its samples are clean (default 60)",
    )
    parser.add_argument("--json", type=Path, help="default: bench/results/smoke-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "workloads": {}}
    print(HEAD)
    for name in args.workloads.split(","):
        rows = measure(WORKLOADS[name], args.setups.split(","), args.samples, args.patience)
        result["workloads"][name] = rows
        for setup, row in rows.items():
            show(name, setup, row)
    path = args.json or RESULTS / f"smoke-{result['date'][:10]}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")
    return 0 if all(row["same_losses"] for rows in result["workloads"].values() for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
