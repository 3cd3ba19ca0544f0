"""What do two devices cost in two processes, against two threads of one process with the same cut, and against
the peers that have two processes, DDP and torch.distributed.pipelining?

    ./dev bench processes                      the five workloads
    ./dev bench processes --workloads deep-narrow --samples 15
    ./dev bench processes --peers none         without peers

All have two devices of one thread. They take turns, one timed sample each, and the others sleep; a sample of two
processes lasts until the later one has ended. Samples during which other programs used more than a twentieth of the
machine are dropped where there are enough others. Our losses must equal those of eager with one thread, bit for bit;
of the peers the largest difference from them is shown. Ratios are those of medians: "ratio" is processes / threads,
"to peer" is processes / the fastest peer (support/peers).
"""

import argparse
import statistics
import sys
from pathlib import Path

from support import results
from support.peers import PEERS
from support.turns import Failed, System, take_turns
from support.workloads import WORKLOADS, headline

CHECKED_STEPS = 4
OURS = {"threads": "2x1", "processes": "2x1-apart"}
TWO = [name for name, peer in PEERS.items() if peer.processes == 2]


def start(name, workload):
    """The system after its first steps, and their losses. Raises: Failed."""
    system = System(OURS.get(name, name), workload.name)
    return system, [system.train(step, 1)["losses"][0] for step in range(CHECKED_STEPS)]


def difference(some, others):
    pairs = [pair for steps in zip(some, others, strict=True) for pair in zip(*steps, strict=True)]
    return max(abs(a - b) for a, b in pairs)


def measure(workload, peers, samples, patience_s):
    eager, expected = start("eager-1", workload)
    eager.stop()
    systems, losses, failures = {}, {}, {}
    for name in (*OURS, *peers):
        try:
            systems[name], losses[name] = start(name, workload)
        except Failed as error:
            if name in OURS:
                raise
            failures[name] = str(error)
    order = list(systems.values())
    take_turns(order, CHECKED_STEPS, workload.steps, samples, patience_s)
    failures |= {name: system.failure for name, system in systems.items() if system.failure}
    medians = {name: system.median(samples) for name, system in systems.items() if not system.failure}
    rivals = {name: medians[name] for name in peers if name in medians}
    best = min(rivals, key=rivals.get, default=None)
    return {
        "threads_ms": medians["threads"] * 1e3,
        "processes_ms": medians["processes"] * 1e3,
        "ratio": medians["processes"] / medians["threads"],
        "peers_ms": {name: seconds * 1e3 for name, seconds in rivals.items()},
        "best_peer": best,
        "ratio_to_peer": medians["processes"] / rivals[best] if best else None,
        "peers_that_failed": failures,
        "clean": min(len(system.clean()) for system in order),
        "samples": len(order[0].samples),
        "all_samples": {name: system.samples for name, system in systems.items()},
        "same_losses": all(losses[name] == expected for name in OURS),
        "loss_difference": {name: difference(losses[name], expected) for name in systems},
    }


def show(name, row, peers):
    times = " ".join(
        f"{row['peers_ms'][peer]:12.1f}" if peer in row["peers_ms"] else f"{'failed':>12}" for peer in peers
    )
    to_peer = f"{row['ratio_to_peer']:8.2f}" if row["best_peer"] else f"{'-':>8}"
    theirs = max((row["loss_difference"][peer] for peer in row["peers_ms"]), default=0)
    print(
        f"{name:14} {row['threads_ms']:10.1f} {row['processes_ms']:13.1f} {row['ratio']:6.2f} {times} {to_peer} "
        f"{row['clean']:3}/{row['samples']:<3} {'same' if row['same_losses'] else 'differ'}, peers {theirs:.0e}",
        flush=True,
    )
    for failure in row["peers_that_failed"].values():
        print(failure, file=sys.stderr)


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--peers", default=",".join(TWO), help=f"some of {','.join(TWO)}, or none (default: all)")
    parser.add_argument("--samples", type=int, default=7, help="clean samples of each system (default 7)")
    parser.add_argument("--patience", type=float, default=60, help="seconds that a workload may wait for clean samples")
    parser.add_argument("--json", type=Path, help="default: bench/results/processes-<date>.json")
    return parser.parse_args()


def main():
    import poptorch

    args = parse()
    if not hasattr(poptorch.Options().Distributed, "devicesPerProcess"):
        raise SystemExit("stages in several processes: this build has no Distributed.devicesPerProcess")
    peers = [] if args.peers == "none" else args.peers.split(",")
    if unknown := set(peers) - set(TWO):
        raise SystemExit(f"no peers in two processes: {', '.join(sorted(unknown))}; there are {', '.join(TWO)}")
    result = results.begin(workloads={})
    heads = " ".join(f"{peer:>12}" for peer in peers)
    print(f"workload       threads ms  processes ms  ratio {heads}  to peer   clean losses")
    for name in args.workloads.split(","):
        row = result["workloads"][name] = measure(WORKLOADS[name], peers, args.samples, args.patience)
        show(name, row, peers)
    rows = headline(result["workloads"]).values()
    to_threads = statistics.geometric_mean([row["ratio"] for row in rows])
    print(f"geometric mean without deep-narrow: processes / threads {to_threads:.3f}")
    if all(row["best_peer"] for row in rows):
        to_peer = statistics.geometric_mean([row["ratio_to_peer"] for row in rows])
        print(f"geometric mean without deep-narrow: processes / fastest peer {to_peer:.3f}")
    results.write(result, args.json, "processes")
    return 0 if all(row["same_losses"] for row in result["workloads"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
