"""Is a compiled training step faster than eager PyTorch, with the very same losses?

    ./dev bench smoke                          the five workloads, one device of 2 threads, of 1, and two devices
    ./dev bench smoke --workloads deep-narrow --setups 1x2 --samples 15
    ./dev bench smoke --setups 1x2,1x2/off     with instructions joined and apart (Options.fusion), in turns
    ./dev bench smoke --setups 1x1,2x1/divided one device beside two that share the work of every layer
    ./dev bench smoke --setups 1x2,2x1/turns   one device beside two that take micro-batches in turn
    ./dev bench smoke --setups auto,1x2,2x1    and the number of devices that Abele chooses for the whole machine
    ./dev bench smoke --peers all              beside torch.compile, DDP and torch.distributed.pipelining
    ./dev bench smoke --workloads published    GPT-2, BERT-base, ResNet-50, a ViT, a Llama (support/published.py)
    ./dev bench smoke --workloads gpt2@16      one of them, with 16 micro-batches a step

A setup DxT is D devices of T threads each. Its ratio is to eager with D * T threads; its losses must equal, bit for
bit, those of eager with T threads. "auto" is AutoSplit.devices("measured") with all cores; a line below it says what
was taken, what a step of each number of devices took while compiling, and that time's ratio to what it took later.
"heap" counts the allocations of tensor memory in the last step. Every system lives in a process of its own; they take
turns, one timed sample each, and the others sleep. A sample is crowded when other programs used more than a twentieth
of the machine; crowded samples are dropped as soon as enough clean ones exist.

A peer (a file of support/peers) uses the whole machine, too: its ratio is to eager with all cores, and its losses may
differ. Below the peers: our best setup to the best peer. At the end: geometric means of all workloads but deep-narrow.
Its time is dispatch, so its ratios are a line of their own: the overhead.
"""

import argparse
import math
import os
import statistics
import sys
from pathlib import Path

from support import results
from support.peers import PEERS
from support.published import named, stem
from support.turns import Failed, System, take_turns
from support.workloads import OVERHEAD, headline

CHECKED_STEPS = 6
HEAD = "workload              setup        ms  eager ms  ratio   best   clean first s    MiB  eager  heap  losses"


def eager_of(threads):
    return f"eager-{threads}"


def split(setup):
    """Devices and threads of each; of "auto" one device, until it says what was taken."""
    setup = setup.partition("/")[0]
    devices, threads = (int(number) for number in setup.split("x")) if setup != "auto" else (1, os.cpu_count())
    return devices, threads


def threads_of(setup, placement):
    """Threads of a device of the setup, or of the placement that was taken."""
    return split(placement["taken"] if placement else setup)[1]


def start(names, workload, steps):
    """Systems that have trained the checked steps, their replies, and why others could not."""
    systems, checked, failures = {}, {}, {}
    for name in names:
        try:
            system = System(name, workload.name)
            checked[name] = [system.train(step, 1) for step in range(steps)]
            systems[name] = system
        except Failed as error:
            if name not in PEERS:
                raise SystemExit(str(error)) from None
            failures[name] = str(error)
    return systems, checked, failures


def row_of(system, base, losses, twin, samples):
    """The times of a system, beside those of the eager system `base`. twin: the losses to compare its own with."""
    pairs = [pair for steps in zip(losses, twin, strict=True) for pair in zip(*steps, strict=True)]
    return {
        "ms": system.median(samples) * 1e3,
        "eager_ms": base.median(samples) * 1e3,
        "ratio": system.median(samples) / base.median(samples),
        "best_ratio": min(system.kept(samples)) / min(base.kept(samples)),
        "same_losses": losses == twin,
        "loss_difference": max(abs(a - b) for a, b in pairs),
        "samples": len(system.samples),
        "clean": len(system.clean()),
        "all_samples": system.samples,
        "peak_mib": system.peak_mib,
        "eager_peak_mib": base.peak_mib,
        "heap_allocations": system.heap_allocations,
    }


def measure(workload, setups, peers, checked_steps, samples, patience_s):
    """Results of one workload by setup and by peer, after all systems took turns."""
    names = sorted({eager_of(d * t) for d, t in map(split, setups)})
    whole = eager_of(os.cpu_count())
    if peers and whole not in names:
        names.append(whole)
    systems, checked, failures = start([*names, *setups, *peers], workload, checked_steps)
    take_turns(list(systems.values()), checked_steps, workload.steps, samples, patience_s)
    failures |= {name: system.failure for name, system in systems.items() if system.failure}
    threads = {name: threads_of(name, systems[name].placement) for name in setups}
    for name in sorted({eager_of(number) for number in threads.values()} - set(names)):  # not timed, so not before
        twins, losses, _ = start([name], workload, checked_steps)
        twins[name].stop()
        checked |= losses
    losses = {name: [reply["losses"][0] for reply in replies] for name, replies in checked.items()}
    rows = {}
    for name in [name for name in (*setups, *peers) if name not in failures]:
        system, base, twin = systems[name], whole, whole
        if name not in PEERS:
            base, twin = eager_of(math.prod(split(name))), eager_of(threads[name])
        rows[name] = row_of(system, systems[base], losses[name], losses[twin], samples)
        rows[name]["first_step_s"] = system.build_s + checked[name][0]["s"]
        if system.placement:
            predicted = system.placement["measured_ms"][system.placement["taken"]]
            rows[name] |= system.placement
            rows[name] |= {"predicted_ms": predicted, "predicted_ratio": predicted / rows[name]["ms"]}
    return rows, failures


def to_best_peer(rows, kind=None):
    """The time of each setup divided by the fastest peer's, and the peer's name. kind: only such peers count."""
    peers = {name: row["ms"] for name, row in rows.items() if name in PEERS and kind in (None, PEERS[name].kind)}
    best = min(peers, key=peers.get)
    return {name: row["ms"] / peers[best] for name, row in rows.items() if name not in PEERS}, best


def means(workloads, setups, peers):
    """Geometric means over the workloads but OVERHEAD: ratios to eager, and of each setup to the best peer's time."""
    workloads = headline(workloads)
    mean = statistics.geometric_mean
    result = {
        name: mean([rows[name]["ratio"] for rows in workloads.values()])
        for name in (*setups, *peers)
        if all(name in rows for rows in workloads.values())
    }
    if not all(any(peer in rows for peer in peers) for rows in workloads.values()):
        return {"to_eager": result}
    kinds = {PEERS[peer].kind for peer in peers if all(peer in rows for rows in workloads.values())}
    to_peer = {
        kind or "all kinds": [to_best_peer(rows, kind)[0] for rows in workloads.values()]
        for kind in (None, *sorted(kinds))
    }
    best = mean([min(rows[name]["ratio"] for name in peers if name in rows) for rows in workloads.values()])
    return {
        "to_eager": result,
        "best_peer_to_eager": best,
        "to_best_peer": {
            kind: {setup: mean([ratios[setup] for ratios in found]) for setup in setups}
            for kind, found in to_peer.items()
        },
    }


def show(name, setup, row):
    same = "same" if row["same_losses"] else f"differ by {row['loss_difference']:.1e}"
    heap = "-" if row["heap_allocations"] is None else row["heap_allocations"]
    print(
        f"{name:14} {setup:>12} {row['ms']:9.1f} {row['eager_ms']:9.1f} {row['ratio']:6.2f} {row['best_ratio']:6.2f} "
        f"{row['clean']:3}/{row['samples']:<3} {row['first_step_s']:7.2f} {row['peak_mib']:6.0f} "
        f"{row['eager_peak_mib']:6.0f} {heap:>5}  {same}",
        flush=True,
    )
    if "taken" in row:
        found = ", ".join(f"{setup} {ms:.1f}" for setup, ms in row["measured_ms"].items())
        print(
            f"{'':14} taken: {row['taken']}; measured before: {found} ms; {row['predicted_ratio']:.2f} of what it took",
            flush=True,
        )


def show_all(name, rows, failures):
    for system, row in rows.items():
        show(name, system, row)
    for failure in failures.values():
        print(failure, file=sys.stderr)
    if any(system in PEERS for system in rows):
        ratios, best = to_best_peer(rows)
        found = ", ".join(f"{setup} {ratio:.2f}" for setup, ratio in ratios.items())
        print(f"{'':14} to the best peer, {best}: {found}", flush=True)


def listed(ratios):
    return ", ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())


def show_means(workloads, result):
    if OVERHEAD in workloads:
        print(f"overhead ({OVERHEAD}) to eager: " + listed({n: r["ratio"] for n, r in workloads[OVERHEAD].items()}))
    found = {"eager": result["to_eager"]}
    found |= {f"the best peer ({kind})": ratios for kind, ratios in result.get("to_best_peer", {}).items()}
    for title, ratios in found.items():
        print(f"geometric mean to {title}: " + listed(ratios))
    if "best_peer_to_eager" in result:
        print(f"geometric mean of the best peers to eager: {result['best_peer_to_eager']:.3f}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="small", help="small (default), published, or names with commas")
    parser.add_argument("--setups", default="1x2,1x1,2x1", help="DxT: devices x threads (default 1x2,1x1,2x1)")
    parser.add_argument("--peers", default="none", help=f"none, all, or some of {','.join(PEERS)} (default none)")
    parser.add_argument(
        "--checked", type=int, default=CHECKED_STEPS, help=f"steps whose losses are compared (default {CHECKED_STEPS})"
    )
    parser.add_argument("--samples", type=int, default=7, help="clean samples of each system (default 7)")
    parser.add_argument(
        "--patience",
        type=float,
        default=60,
        help="seconds that a workload may take until its samples are clean (default 60)",
    )
    parser.add_argument("--json", type=Path, help="default: bench/results/smoke[-published]-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    setups = args.setups.split(",")
    peers = {"none": [], "all": list(PEERS)}.get(args.peers, args.peers.split(","))
    if unknown := set(peers) - set(PEERS):
        raise SystemExit(f"no peers: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    workloads, failed = {}, {}
    result = results.begin(workloads=workloads)
    print(HEAD)
    for workload in named(args.workloads):
        name = workload.name
        workloads[name], failed[name] = measure(workload, setups, peers, args.checked, args.samples, args.patience)
        show_all(name, workloads[name], failed[name])
        result |= {"peers_that_failed": failed, "geometric_means": means(workloads, setups, peers)}
        results.save(result, args.json, stem("smoke", args.workloads))
    show_means(workloads, result["geometric_means"])
    results.write(result, args.json, stem("smoke", args.workloads))
    return 0 if all(rows[setup]["same_losses"] for rows in workloads.values() for setup in setups) else 1


if __name__ == "__main__":
    sys.exit(main())
