"""What do micro-batches side by side (abele.lanes) save on one device, with the same bits?

    ./dev bench lanes                       the five workloads: a training step, and predictions of eight micro-batches
    ./dev bench lanes --workloads deep-narrow --threads 2 --rounds 20 --runs 3

In one process, step by step in turns: micro-batches one by one (abele.lanes 1), and as many side by side as Abele
chooses (0). Shown of each run: the number of lanes, medians, the ratio of medians and that of the fastest steps. All
results must be equal, bit for bit.
"""

import argparse
import json
import re
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import poptorch
import torch
from support.machine import RESULTS, describe
from support.workloads import MICRO_BATCHES, WORKLOADS

WARM_UP = 3


def build(workload, training, lanes, threads):
    torch.set_num_threads(threads)
    model = workload.model()
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.showCompilationProgressBar(False)
    options._Popart.set("abele.lanes", lanes)
    if training:
        options.Training.gradientAccumulation(MICRO_BATCHES)
        return poptorch.trainingModel(model, options, workload.optimizer(model.parameters()))
    return poptorch.inferenceModel(torch.nn.Sequential(*model.parts).eval(), options.deviceIterations(MICRO_BATCHES))


def lanes_of(executor):
    found = re.search(r"^executable .* lanes=(\d+)", executor._executable.session.executableText())
    return int(found[1]) if found else 1


def run(workload, training, threads, rounds):
    systems = [build(workload, training, lanes, threads) for lanes in (1, 0)]
    times, same = ([], []), True
    for step in range(WARM_UP + rounds):
        batch = workload.batch(step)[: 2 if training else 1]
        results = []
        for system, taken in zip(systems, times, strict=True):
            begin = time.perf_counter()
            results.append(system(*batch))
            if step >= WARM_UP:
                taken.append(time.perf_counter() - begin)
        same = same and torch.equal(*results)
    lanes = lanes_of(systems[1])
    for system in systems:
        system.destroy()
    apart, together = (statistics.median(taken) * 1e3 for taken in times)
    best = min(times[1]) / min(times[0])
    times_ms = {"apart_ms": apart, "together_ms": together}
    return {"lanes": lanes, **times_ms, "ratio": together / apart, "best_ratio": best, "same": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="default: bench/results/lanes-<date>.json")
    arguments = parser.parse_args()
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    result |= {"threads": arguments.threads, "rounds": arguments.rounds, "runs": []}
    path = arguments.json or RESULTS / f"lanes-{result['date'][:10]}.json"
    print("workload        what     lanes  one by one ms  side by side ms  ratio   best  bits")
    for name in arguments.workloads.split(","):
        for training in (True, False):
            for _ in range(arguments.runs):
                row = run(WORKLOADS[name], training, arguments.threads, arguments.rounds)
                what = "train" if training else "predict"
                print(
                    f"{name:15} {what:8} {row['lanes']:5} {row['apart_ms']:14.2f} {row['together_ms']:16.2f} "
                    f"{row['ratio']:6.2f} {row['best_ratio']:6.2f}  {'same' if row['same'] else 'differ'}",
                    flush=True,
                )
                result["runs"].append({"workload": name, "what": what, **row})
                path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
