"""How many numbers of a training step does tensor parallelism change, and how many does torch.distributed.tensor?

    ./dev bench tensor_parallel                two small models, and GPT-2, BERT-base and a Llama of transformers
    ./dev bench tensor_parallel --workloads gpt-small,bert-mini

One step without dropout, in two processes, beside the same step of eager PyTorch; each has one thread. GPT-2 has
nn.Linear in place of Conv1D. A tensor differs if one bit does. Our gradients stay inside the program, so that only our
losses and weights are compared. How long a step takes: ./dev bench smoke --setups 2x1/divided-apart --peers dtensor
"""

import argparse
import dataclasses
import multiprocessing
import os
import sys
from pathlib import Path

import torch
from support import results
from support.eager import Eager
from support.machine import free_port
from support.peers.dtensor import FUSED, PROCESSES, TensorParallel, by_process, plain
from support.published import find
from support.systems import Compiled

DEFAULT = "gpt-small,bert-mini,gpt2,bert-base,llama-8"


def without_dropout(workload):
    """The same with layers that plans know."""

    def parts():
        modules = plain(torch.nn.ModuleList(workload.parts()))
        for module in modules.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return list(modules)

    return dataclasses.replace(workload, parts=parts)


def one_step(system, name, rank, port, pipe):
    """Sends what a step leaves, as arrays by name of the parameter: losses, gradients, weights."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    workload = without_dropout(find(name))
    if system == "ours":
        made = Compiled(workload, PROCESSES, 1, own=1, divided=True)
    else:
        made = Eager(workload, 1) if system == "eager" else TensorParallel(workload)
    losses, model = made.step(*workload.batch(0)), made.model
    if system == "ours":
        model.copyWeightsToHost()
        model = model.model

    def whole(key, tensor):
        tensor = tensor.detach()
        if hasattr(tensor, "full_tensor"):
            tensor = tensor.full_tensor()
            if key.rpartition(".")[0].endswith(FUSED):
                tensor = by_process(tensor, (PROCESSES, 3))
        return tensor.numpy()

    found = {"losses": {"all": losses.numpy()}, "gradients": {}, "weights": {}}
    for key, parameter in model.named_parameters():
        if system != "ours":
            found["gradients"][key] = whole(key, parameter.grad)
        found["weights"][key] = whole(key, parameter)
    pipe.send(found)


def step_of(system, name):
    context, port = multiprocessing.get_context("spawn"), str(free_port())
    pipes, processes = [], []
    for rank in range(1 if system == "eager" else PROCESSES):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=one_step, args=(system, name, rank, port, theirs), daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(mine)
    results = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return next(each for each in results if each["losses"]["all"].size)


def compared(found, expected):
    """By losses, gradients and weights: how many tensors there are, how many differ, the largest difference."""
    result = {}
    for what, each in found.items():
        if pairs := [(value, expected[what][key]) for key, value in each.items()]:
            result[what] = {
                "tensors": len(pairs),
                "differ": sum(bool((a != b).any()) for a, b in pairs),
                "largest": max(float(abs(a - b).max()) for a, b in pairs),
            }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=DEFAULT, help=f"names with commas (default {DEFAULT})")
    parser.add_argument("--json", type=Path, help="default: bench/results/tensor_parallel-<date>.json")
    args = parser.parse_args()
    result = results.begin(workloads={})
    for name in args.workloads.split(","):
        eager = step_of("eager", name)
        row = {system: compared(step_of(system, name), eager) for system in ("ours", "dtensor")}
        result["workloads"][name] = row
        for system, found in row.items():
            texts = [f"{what} {n['differ']} of {n['tensors']} by {n['largest']:.1e}" for what, n in found.items()]
            print(f"{name:10} {system:8} differ: {', '.join(texts)}", flush=True)
        results.save(result, args.json, "tensor_parallel")
    results.write(result, args.json, "tensor_parallel")
    return int(any(found["differ"] for row in result["workloads"].values() for found in row["ours"].values()))


if __name__ == "__main__":
    sys.exit(main())
