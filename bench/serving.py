"""What does a queue before a compiled program do for requests of many threads, against eager and compiled PyTorch?

    ./dev bench serving                                    10,000 requests from 32 threads, three runs of each system
    ./dev bench serving --systems abele --requests 1000 --runs 1

Requests have 1 to 8 rows; one in 100 is wrong: a word that is not there, or a text that is too long. Each thread asks
for the next request as soon as it has its answer. An answer is right if it holds the rows of eager PyTorch for this
request alone, within rounding, and an error for a wrong one. Eager and torch.compile answer one request at a time,
behind a lock, with all cores; those with -1 use one. Systems take turns, each run in a process of its own; what is
compiled is warm. The wrong requests of torch.compile are all of the second kind: a word that is not there ends its
process (an exception in a parallel region, torch 2.13).

A request is about a millisecond of work: so small that what a call costs beside its arithmetic shows, and that 10,000
of them take seconds.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
from support import results
from support.machine import busy_seconds

WORDS, LENGTH, DIM, MOST_ROWS, BATCH = 1000, 16, 64, 8, 32
POOL = 128  # different requests


class Reader(torch.nn.Module):
    """A small transformer that reads texts of up to LENGTH words."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(WORDS, DIM)
        self.places = torch.nn.Parameter(torch.randn(LENGTH, DIM) * 0.1)
        layers = (torch.nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, 0.0, batch_first=True) for _ in range(2))
        self.layers = torch.nn.Sequential(*layers)
        self.head = torch.nn.Linear(DIM, 10)

    def forward(self, ids):
        return self.head(self.layers(self.words(ids) + self.places).mean(1))


class Requests:
    """The requests, which are the same for all systems, and the right answers."""

    def __init__(self, net, count, wrong):
        draw, choose = torch.Generator().manual_seed(1), random.Random(1)
        self.count, self.wrong = count, wrong
        self.texts = [torch.randint(WORDS, (choose.randint(1, MOST_ROWS), LENGTH), generator=draw) for _ in range(POOL)]
        with torch.no_grad():
            self.expected = [net(text) for text in self.texts]

    def is_wrong(self, number):
        return number % 100 == 99

    def text(self, number):
        text = self.texts[number % POOL]
        if not self.is_wrong(number):
            return text
        kinds = ("words", "shapes") if self.wrong == "both" else (self.wrong,)
        if kinds[number // 100 % len(kinds)] == "shapes":
            return torch.cat([text, text[:, :1]], 1)
        text = text.clone()
        text[-1, 5] = WORDS
        return text

    def is_right(self, number, found):
        if self.is_wrong(number):
            return isinstance(found, Exception)
        if isinstance(found, Exception):
            return False
        expected = self.expected[number % POOL]
        return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-4, atol=1e-5)


class Locked:
    """One request at a time."""

    def __init__(self, model, threads=None):
        self.model, self.lock, self.threads = model, threading.Lock(), threads or os.cpu_count()

    def __call__(self, text):
        with self.lock, torch.no_grad():
            torch.set_num_threads(self.threads)  # each thread that asks has its own number
            return self.model(text)

    def counts(self):
        return {}

    def stop(self):
        pass


class Served:
    def __init__(self, net, devices, threads):
        import abele

        options = abele.Options().showCompilationProgressBar(False)
        options.threadsPerDevice(threads)
        if devices > 1:
            options.deviceIterations(4)  # micro-batches of a call
            abele.BeginBlock(net.layers[0], ipu_id=0)
            abele.BeginBlock(net.layers[1], ipu_id=1)
        model = abele.inferenceModel(net, options)
        model.compile(torch.zeros(BATCH, LENGTH, dtype=torch.long))
        self.server = abele.serve(model, longest_wait_ms=2)

    def __call__(self, text):
        return self.server(text)

    def counts(self):
        found = self.server.statistics()
        return {"batches": found.batches, "filling_rows": found.filling_rows, "rows": found.rows}

    def stop(self):
        self.server.stop()


SYSTEMS = {
    "eager": lambda net: Locked(net),
    "eager-1": lambda net: Locked(net, threads=1),
    "torch.compile": lambda net: Locked(torch.compile(net, dynamic=True)),
    "torch.compile-1": lambda net: Locked(torch.compile(net, dynamic=True), threads=1),
    "abele": lambda net: Served(net, 1, 2),
    "abele-1": lambda net: Served(net, 1, 1),
    "abele-2": lambda net: Served(net, 2, 1),
}


def warm(system, requests):
    for number in range(99):
        assert requests.is_right(number, system(requests.text(number))), "an answer before the measurement is wrong"
    for number in (99, 199):
        try:
            system(requests.text(number))
        except Exception:
            continue
        raise AssertionError("a wrong request was answered")


def serve_once(name, threads, count, wrong):
    """One run, in this process."""
    torch.manual_seed(0)
    net = Reader().eval()
    torch.set_num_threads(1)  # where other programs keep a core busy, threads wait for each other
    requests = Requests(net, count, "shapes" if name.startswith("torch.compile") else wrong)
    system = SYSTEMS[name](net)
    warm(system, requests)
    before = system.counts()
    numbers, next_number = iter(range(count)), threading.Lock()
    latencies, mistakes = [], []

    def ask():
        mine = []
        while True:
            with next_number:
                number = next(numbers, None)
            if number is None:
                break
            text, begin = requests.text(number), time.perf_counter()
            try:
                found = system(text)
            except Exception as error:
                found = error
            mine.append(time.perf_counter() - begin)
            if not requests.is_right(number, found):
                mistakes.append(number)
        latencies.extend(mine)

    clients = [threading.Thread(target=ask) for _ in range(threads)]
    begin, busy, own = time.perf_counter(), busy_seconds(), time.process_time()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    wall, own = time.perf_counter() - begin, time.process_time() - own
    busy = busy_seconds() - busy
    system.stop()
    latencies.sort()
    return {
        "right": count - len(mistakes),
        "requests": len(latencies),
        "s": wall,
        "p50_ms": 1e3 * latencies[len(latencies) // 2],
        "p99_ms": 1e3 * latencies[int(0.99 * len(latencies))],
        "cpu_s": own,
        "others": max(0.0, busy - own) / (wall * os.cpu_count()),
        **{name: count - before[name] for name, count in system.counts().items()},
    }


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--wrong", choices=["words", "shapes", "both"], default="both")
    parser.add_argument("--json", type=Path, help="default: bench/results/serving-<date>.json")
    parser.add_argument("--alone", help=argparse.SUPPRESS)  # a run of one system in this process
    return parser.parse_args()


def run(name, args):
    words = ["--alone", name, "--requests", args.requests, "--threads", args.threads, "--wrong", args.wrong]
    done = subprocess.run([sys.executable, __file__, *map(str, words)], stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    return json.loads(lines[-1]) if done.returncode == 0 else {"error": lines[-1] if lines else "it ended"}


def main():
    args = parse()
    if args.alone:
        try:
            print(json.dumps(serve_once(args.alone, args.threads, args.requests, args.wrong)))
        except Exception as error:
            traceback.print_exc()
            print(f"{type(error).__name__}: {error}".splitlines()[0])
            return 1
        return 0
    result = results.begin(requests=args.requests, threads=args.threads, wrong=args.wrong, systems={})
    names = args.systems.split(",")
    print("system         requests/s   p50 ms   p99 ms   cpu s  right          others")
    for turn in range(args.runs):
        for name in names[:: 1 if turn % 2 == 0 else -1]:
            row = run(name, args)
            result["systems"].setdefault(name, []).append(row)
            if "error" in row:
                print(f"{name:14} {row['error']}", flush=True)
                continue
            print(
                f"{name:14} {row['requests'] / row['s']:10.0f} {row['p50_ms']:8.1f} {row['p99_ms']:8.1f} "
                f"{row['cpu_s']:7.1f}  {row['right']} of {row['requests']}  {100 * row['others']:4.0f} %",
                flush=True,
            )
    whole = {name: [row for row in rows if "error" not in row] for name, rows in result["systems"].items()}
    for name, rows in whole.items():
        if rows:
            keys = ("s", "p50_ms", "p99_ms", "cpu_s")
            median = {key: statistics.median(row[key] for row in rows) for key in keys}
            print(
                f"median {name:14} {args.requests / median['s']:.0f} requests/s, p50 {median['p50_ms']:.1f} ms, "
                f"p99 {median['p99_ms']:.1f} ms, {median['cpu_s']:.1f} s of processor time"
            )
    results.write(result, args.json, "serving")
    return 0 if all(row.get("right") == args.requests for rows in whole.values() for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
