"""What do two devices cost in two processes, against two threads of one process with the same cut?

    ./dev bench processes                      the five workloads
    ./dev bench processes --workloads deep-narrow --samples 15

Both have two devices of one thread. They take turns, one timed sample each, and the others sleep; a sample of two
processes lasts until the later one has ended. Samples during which other programs used more than a twentieth of the
machine are dropped where there are enough others. Losses must be equal, bit for bit. The ratio is that of medians.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from support.machine import busy_seconds, describe
from support.systems import serve
from support.workloads import WORKLOADS

CHECKED_STEPS = 4
CROWDED = 0.05
RESULTS = Path(__file__).resolve().parent / "results"
SYSTEMS = {"threads": ("2x1", 1), "processes": ("2x1-apart", 2)}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class System:
    """As many processes as the devices need, which all get the same orders."""

    def __init__(self, name, workload):
        setup, number = SYSTEMS[name]
        context = multiprocessing.get_context("spawn")
        port = str(free_port())
        self.name, self.samples, self.pipes, self.processes = name, [], [], []
        for rank in range(number):
            pipe, theirs = context.Pipe()
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(number)}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            arguments = (theirs, setup, workload, variables if number > 1 else None)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(pipe)
            self.processes.append(process)
        self.receive()

    def receive(self):
        replies = []
        for pipe in self.pipes:
            replies.append(pipe.recv())
            if "error" in replies[-1]:
                raise SystemExit(f"{self.name}: {replies[-1]['error']}")
        return replies

    def train(self, first, steps):
        for pipe in self.pipes:
            pipe.send((first, steps))
        return self.receive()

    def sample(self, first, steps):
        wall, busy = time.perf_counter(), busy_seconds()
        replies = self.train(first, steps)
        wall, busy = time.perf_counter() - wall, busy_seconds() - busy
        others = max(0.0, busy - sum(reply["cpu_s"] for reply in replies)) / (wall * os.cpu_count())
        self.samples.append((others, max(reply["s"] for reply in replies) / steps))

    def clean(self):
        return [seconds for others, seconds in self.samples if others < CROWDED]

    def median(self, wanted):
        return statistics.median([s for _, s in sorted(self.samples)][: max(wanted, len(self.clean()))])

    def stop(self):
        for pipe in self.pipes:
            pipe.send(None)
        self.receive()
        for process in self.processes:
            process.join()


def measure(workload, samples, patience_s):
    systems = [System(name, workload.name) for name in SYSTEMS]
    losses = [[system.train(step, 1)[0]["losses"] for step in range(CHECKED_STEPS)] for system in systems]
    until, turn = time.monotonic() + patience_s, 0
    while turn < samples or (time.monotonic() < until and any(len(s.clean()) < samples for s in systems)):
        for system in systems[:: 1 if turn % 2 else -1]:
            system.sample(CHECKED_STEPS + turn * workload.steps, workload.steps)
        turn += 1
    for system in systems:
        system.stop()
    threads, processes = (system.median(samples) for system in systems)
    return {
        "threads_ms": threads * 1e3,
        "processes_ms": processes * 1e3,
        "ratio": processes / threads,
        "clean": min(len(system.clean()) for system in systems),
        "samples": turn,
        "same_losses": losses[0] == losses[1],
    }


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--samples", type=int, default=7, help="clean samples of each system (default 7)")
    parser.add_argument("--patience", type=float, default=60, help="seconds that a workload may wait for clean samples")
    parser.add_argument("--json", type=Path, help="default: bench/results/processes-<date>.json")
    return parser.parse_args()


def main():
    import poptorch

    args = parse()
    if not hasattr(poptorch.Options().Distributed, "devicesPerProcess"):
        raise SystemExit("stages in several processes: this build has no Distributed.devicesPerProcess")
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds"), "workloads": {}}
    print("workload       threads ms  processes ms  ratio   clean  losses")
    for name in args.workloads.split(","):
        row = result["workloads"][name] = measure(WORKLOADS[name], args.samples, args.patience)
        print(
            f"{name:14} {row['threads_ms']:10.1f} {row['processes_ms']:13.1f} {row['ratio']:6.2f} "
            f"{row['clean']:3}/{row['samples']:<3}  {'same' if row['same_losses'] else 'differ'}",
            flush=True,
        )
    ratios = [row["ratio"] for row in result["workloads"].values()]
    print(f"geometric mean {statistics.geometric_mean(ratios):.3f}")
    path = args.json or RESULTS / f"processes-{result['date'][:10]}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")
    return 0 if all(row["same_losses"] for row in result["workloads"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
