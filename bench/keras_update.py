"""What does a weight update of a Keras optimizer take: by the program that was captured from it, against Keras itself?

    ./dev bench keras_update [--widths 64,512] [--layers 8] [--rounds 20] [--threads 1]

A pipeline of two stages with dense layers, two models of the same weights that take turns, a weight update each: one
whose learning rate is a number, so that a program updates; one whose learning rate is a function that returns it, which
Keras itself asks on the host. The figure is the least time of an execution (two micro-batches a stage, forward,
backward, update, metrics) and of the update alone, and their medians. The weights of both must be the same bits.
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import abele.keras as ipu
import keras
import numpy as np
import torch
from abele.keras._execution import Execution
from abele.keras._update import Updates
from support import results

OPTIMIZERS = {
    "SGD": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "Adam": keras.optimizers.Adam,
    "AdamW": keras.optimizers.AdamW,
    "RMSprop": keras.optimizers.RMSprop,
}
ROWS, STAGES, RATE = 4, 2, 0.01
taken = {}  # name of a method -> seconds of its calls


def timed(owner, name):
    original = getattr(owner, name)

    def method(*args, **kwargs):
        begin = time.perf_counter()
        result = original(*args, **kwargs)
        taken.setdefault(name, []).append(time.perf_counter() - begin)
        return result

    setattr(owner, name, method)


def model(optimizer, rate, width, layers):
    keras.utils.set_random_seed(1)
    with ipu.IPUStrategy().scope():
        made = keras.Sequential([keras.Input((width,))] + [keras.layers.Dense(width, "relu") for _ in range(layers)])
        made.set_pipeline_stage_assignment([index * STAGES // layers for index in range(layers)])
    accumulation = 2 * STAGES
    made.set_pipelining_options(gradient_accumulation_steps_per_replica=accumulation)
    made.compile(OPTIMIZERS[optimizer](rate), "mse", steps_per_execution=accumulation)
    return made


def measure(optimizer, width, layers, rounds):
    x = np.random.default_rng(0).standard_normal((ROWS * 2 * STAGES, width)).astype("float32")
    models = {"host": model(optimizer, lambda: RATE, width, layers), "program": model(optimizer, RATE, width, layers)}
    row = {way: {"execution": [], "update": []} for way in models}
    for turn in range(rounds + 2):  # the first ones compile
        for way, each in models.items():
            taken.clear()
            each.fit(x, x, batch_size=ROWS, shuffle=False, verbose=0)
            if turn >= 2:
                row[way]["execution"] += taken["__call__"]
                row[way]["update"] += taken["apply"]
    host, program = (each.get_weights() for each in models.values())
    row["same"] = all(np.array_equal(a, b) for a, b in zip(host, program, strict=True))
    row["where"] = {way: ipu.execution_report(each)["update"].partition(":")[0] for way, each in models.items()}
    return row


def show(optimizer, width, row):
    cells = []
    for what in ("update", "execution"):
        for way in ("host", "program"):
            times = row[way][what]
            cells.append(f"{min(times) * 1e3:7.2f} ({statistics.median(times) * 1e3:7.2f})")
    wrong = "" if row["same"] else "  weights DIFFER"
    wrong += "" if row["where"] == {"host": "host", "program": "device"} else f"  ran on {row['where']}"
    print(f"{optimizer:8} {width:5}  {'  '.join(cells)}{wrong}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--widths", default="64,512")
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path, help="default: bench/results/keras_update-<date>.json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    timed(Execution, "__call__")
    timed(Updates, "apply")
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = STAGES
    config.configure_ipu_system()
    result = results.begin(rows=[])
    print(f"ms, least (median) of {args.rounds}; update: host, program; execution: host, program")
    for width in map(int, args.widths.split(",")):
        for optimizer in args.optimizers.split(","):
            row = measure(optimizer, width, args.layers, args.rounds)
            result["rows"].append({"optimizer": optimizer, "width": width, "layers": args.layers, **row})
            show(optimizer, width, row)
    results.write(result, args.json, "keras_update")
    return 0 if all(row["same"] for row in result["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
