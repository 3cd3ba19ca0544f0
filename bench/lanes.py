"""What do micro-batches side by side (abele.lanes) save, with the same bits, and does the prediction rank them right?

    ./dev bench lanes                       the five workloads: a training step, and predictions of eight micro-batches
    ./dev bench lanes --workloads deep-narrow --setups 1x2,2x1 --lanes 1,2,4,8,0 --rounds 20 --runs 3

A setup DxT is D devices of T threads each. In one process, step by step in turns: each number of --lanes; 0 is what
Abele chooses. Shown of each run and number: the lanes that there are, the predicted step (`abele.explain`), the median,
and, against the first number, the ratio of medians and that of the fastest steps. All results must be equal, bit for
bit.
"""

import argparse
import json
import re
import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import abele
import poptorch
import torch
from support.machine import RESULTS, describe
from support.workloads import MICRO_BATCHES, WORKLOADS

WARM_UP = 3


def build(workload, training, setup, lanes):
    devices, threads = (int(number) for number in setup.split("x"))
    torch.set_num_threads(threads)
    model = workload.model()
    parts = model.parts if training else torch.nn.Sequential(*model.parts).eval()
    if devices == 2:
        poptorch.BeginBlock(parts[0], ipu_id=0)
        poptorch.BeginBlock(parts[workload.cut], ipu_id=1)
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.showCompilationProgressBar(False)
    options._Popart.set("abele.lanes", lanes)
    if training:
        options.Training.gradientAccumulation(MICRO_BATCHES)
        return poptorch.trainingModel(model, options, workload.optimizer(model.parameters()))
    return poptorch.inferenceModel(parts, options.deviceIterations(MICRO_BATCHES))


def lanes_of(executor):
    found = re.search(r"^executable .* lanes=(\d+)", executor._executable.session.executableText())
    return int(found[1]) if found else 1


def predicted_ms(executor):
    return float(re.search(r"predicted step ([\d.]+) ms", abele.explain(executor))[1])


def run(workload, training, setup, asked, rounds):
    systems = [build(workload, training, setup, lanes) for lanes in asked]
    times, same = [[] for _ in asked], [True for _ in asked]
    for step in range(WARM_UP + rounds):
        batch = workload.batch(step)[: 2 if training else 1]
        results = []
        for system, taken in zip(systems, times, strict=True):
            begin = time.perf_counter()
            results.append(system(*batch))
            if step >= WARM_UP:
                taken.append(time.perf_counter() - begin)
        same = [s and torch.equal(results[0], result) for s, result in zip(same, results, strict=True)]
    rows = []
    for i, system in enumerate(systems):
        rows.append(
            {
                "asked": asked[i],
                "lanes": lanes_of(system),
                "predicted_ms": predicted_ms(system),
                "ms": statistics.median(times[i]) * 1e3,
                "ratio": statistics.median(times[i]) / statistics.median(times[0]),
                "best_ratio": min(times[i]) / min(times[0]),
                "same": same[i],
            }
        )
        system.destroy()
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--setups", default="1x2", help="DxT: devices x threads, comma-separated (default 1x2)")
    parser.add_argument("--lanes", default="1,0", help="numbers to compare, the first is the base (default 1,0)")
    parser.add_argument("--kinds", default="train,predict", help="train, predict, or both")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, help="default: bench/results/lanes-<date>.json")
    arguments = parser.parse_args()
    asked = [int(number) for number in arguments.lanes.split(",")]
    result = {"machine": describe(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    result |= {"rounds": arguments.rounds, "runs": []}
    path = arguments.json or RESULTS / f"lanes-{result['date'][:10]}.json"
    print("workload        setup  what     asked  lanes  predicted ms        ms  ratio   best  bits")
    for name in arguments.workloads.split(","):
        for setup in arguments.setups.split(","):
            for what in arguments.kinds.split(","):
                for _ in range(arguments.runs):
                    rows = run(WORKLOADS[name], what == "train", setup, asked, arguments.rounds)
                    for row in rows:
                        print(
                            f"{name:15} {setup:6} {what:8} {row['asked']:5} {row['lanes']:6} "
                            f"{row['predicted_ms']:13.2f} {row['ms']:9.2f} {row['ratio']:6.2f} {row['best_ratio']:6.2f}"
                            f"  {'same' if row['same'] else 'differ'}",
                            flush=True,
                        )
                    result["runs"].append({"workload": name, "setup": setup, "what": what, "rows": rows})
                    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
