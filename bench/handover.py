"""What does it take to hand a message over from one process to another on one host?

    ./dev bench handover                       64 KiB: shared memory, Gloo, torch.distributed
    ./dev bench handover --bytes 1048576 --samples 9

Two processes send the message to and fro; a hand-over is half of a round trip. The ways take turns, a pair of new
processes for each sample. "memory" is how stages of one host hand over, "sockets" how those of several hosts do
(ABELE_HANDOVER=sockets), both as links of the runtime (bench/handover.cc); "torch.distributed" is send and recv of its
Gloo group from Python. Of each sample the median round trip counts, of the samples the median. others: the share of
the machine that other programs used meanwhile; samples with more than a twentieth are dropped where others are left.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

from support import results
from support.machine import CROWDED, built, busy_seconds, free_port

TARGETS = ("abele-handover",)
GOAL_US = 15
WAYS = ("memory", "sockets", "torch.distributed")
PYTHON = """
import sys, time
import torch, torch.distributed as dist
bytes, rounds = map(int, sys.argv[1:])
dist.init_process_group("gloo")
message, own, times = torch.zeros(bytes, dtype=torch.uint8), dist.get_rank(), []
for _ in range(rounds // 10 + 1 + rounds):
    begin = time.perf_counter_ns()
    for sender in (0, 1):
        dist.send(message, 1) if own == sender == 0 else None
        dist.send(message, 0) if own == sender == 1 else None
        dist.recv(message, sender) if own != sender else None
    times.append(time.perf_counter_ns() - begin)
print(*times[-rounds:] if own == 0 else (), sep="\\n")
"""


def sample(way, size, rounds):
    """(share of the machine that others used, microseconds of a hand-over in the median round trip)."""
    command = [sys.executable, "-c", PYTHON] if way == "torch.distributed" else [built("abele-handover")]
    variables = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    variables |= {"ABELE_HANDOVER": way, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    wall, busy, own = time.perf_counter(), busy_seconds(), cpu_seconds()
    processes = [
        subprocess.Popen(
            [*command, str(size), str(rounds)],
            env={**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    text = [process.communicate()[0] for process in processes][0]
    wall = time.perf_counter() - wall
    if any(process.returncode for process in processes):
        raise SystemExit(f"{way}: a process failed")
    others = max(0.0, busy_seconds() - busy - (cpu_seconds() - own)) / (wall * os.cpu_count())
    return others, statistics.median(int(line) for line in text.split()) / 2e3


def cpu_seconds():
    """Processor seconds of the ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=64 << 10)
    parser.add_argument("--rounds", type=int, default=20000, help="of a sample (default 20000)")
    parser.add_argument("--samples", type=int, default=7, help="of each way (default 7)")
    parser.add_argument("--json", type=Path, help="default: bench/results/handover-<date>.json")
    return parser.parse_args()


def main():
    args = parse()
    samples = {way: [] for way in WAYS}
    for turn in range(args.samples):
        for way in WAYS[turn % len(WAYS) :] + WAYS[: turn % len(WAYS)]:
            samples[way].append(sample(way, args.bytes, args.rounds))
    result = results.begin(bytes=args.bytes)
    result |= {"rounds": args.rounds, "ways": {}}
    print(f"{'way':18} {'us a hand-over':>14} {'least':>6} {'most':>6}  clean")
    for way, found in samples.items():
        clean = [us for others, us in found if others < CROWDED] or [us for _, us in found]
        row = {"us": statistics.median(clean), "samples": [{"others": o, "us": us} for o, us in found]}
        result["ways"][way] = row
        number = sum(others < CROWDED for others, _ in found)
        print(f"{way:18} {row['us']:14.1f} {min(clean):6.1f} {max(clean):6.1f}  {number}/{len(found)}")
    print(f"goal for 64 KiB through memory: {GOAL_US} us")
    results.write(result, args.json, "handover")
    return 0


if __name__ == "__main__":
    sys.exit(main())
