"""How much memory does training take, against eager PyTorch?

    ./dev bench memory_growth [--mib 256 1024] [--optimizers adamw sgd] [--steps 3] [--runs 3] [--json FILE]

A transformer whose parameters take that many MiB, one device of one thread, every run a process of its own: `eager` is
PyTorch's own step (gradients freed before forward), `abele` shares the parameters' memory with the device, `copies` is
abele with shareWeights off, as the poptorch front end has it by default. Memory is the largest resident set of the
process (VmHWM), Python and torch included; what the plan knows of it is listed beside. Goal: abele at most 1.05 x
eager. Losses must be the same bits.
"""

import argparse
import statistics
from pathlib import Path

from support.machine import peak_bytes
from support.results import run_apart, write_if_asked

GOAL = 1.05
MIB = 1 << 20
WIDTH, BATCH, LENGTH, CLASSES = 1024, 2, 16, 16
SYSTEMS = ("eager", "abele", "copies")


def resident():
    """Pages of this process in memory, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def make_model(mib):
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            per_layer = 4 * (12 * WIDTH**2 + 13 * WIDTH)
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, dropout=0.0, batch_first=True)
                for _ in range(round(mib * MIB / per_layer))
            )
            self.head = nn.Linear(WIDTH, CLASSES)
            self.loss = nn.CrossEntropyLoss()

        def forward(self, x, target):
            for layer in self.layers:
                x = layer(x)
            return self.loss(self.head(x.mean(1)), target)

    torch.manual_seed(0)
    return Net()


def make_optimizer(name, model):
    import torch

    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-4)
    return torch.optim.SGD(model.parameters(), lr=1e-3, **({"momentum": 0.9} if name == "momentum" else {}))


def make_step(system, model, optimizer):
    """A training step, and what the plan says of memory once it ran."""
    if system == "eager":

        def step(*batch):
            optimizer.zero_grad()
            loss = model(*batch)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step, dict
    import abele

    options = abele.Options().showCompilationProgressBar(False)
    options.shareWeights(system == "abele")
    executor = abele.trainingModel(model, options, optimizer)

    def planned():
        by_class = executor.memoryReport()["devices"][0]["by_class"]
        report = executor.report()
        return {name: bytes for name, bytes in by_class.items() if bytes} | {
            "shared": report["shared_weight_bytes"],
            "workspaces": report["workspace_bytes"],
        }

    return executor, planned


def train(pipe, system, mib, optimizer_name, steps):
    import torch

    torch.set_num_threads(1)
    imported = resident()
    model = make_model(mib)
    made = resident()
    generator = torch.Generator().manual_seed(1)
    batch = (
        torch.randn(BATCH, LENGTH, WIDTH, generator=generator),
        torch.randint(CLASSES, (BATCH,), generator=generator),
    )
    step, planned = make_step(system, model, make_optimizer(optimizer_name, model))
    losses, first_peak = [], 0
    for _ in range(steps):
        losses.append(step(*batch).item())
        first_peak = first_peak or peak_bytes()
    pipe.send(
        {
            "imported": imported,
            "model": made - imported,
            "parameters": sum(p.numel() * p.element_size() for p in model.parameters()),
            "peak_first_step": first_peak,
            "peak": peak_bytes(),
            "resident_after": resident(),
            "planned": planned(),
            "losses": losses,
        }
    )


def show(key, runs_of):
    eager = statistics.median(run["peak"] for run in runs_of["eager"]) if "eager" in runs_of else None
    for system, runs in runs_of.items():
        peaks = [run["peak"] for run in runs]
        run = runs[0]
        ratio = f" = {statistics.median(peaks) / eager:.3f} x eager" if eager else ""
        print(
            f"{key} {system:7} peak {', '.join(f'{p / MIB:.0f}' for p in peaks)} MiB{ratio}; "
            f"imported {run['imported'] / MIB:.0f}, model {run['model'] / MIB:.0f}, first step "
            f"{run['peak_first_step'] / MIB:.0f}, after {run['resident_after'] / MIB:.0f}"
        )
        if run["planned"]:
            print(" " * 12 + ", ".join(f"{name} {bytes / MIB:.0f}" for name, bytes in run["planned"].items()))
    same = len({tuple(run["losses"]) for runs in runs_of.values() for run in runs}) == 1
    print(f"{key} losses {'equal' if same else 'DIFFER'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--optimizers", nargs="+", choices=("sgd", "momentum", "adamw"), default=["adamw", "sgd"])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", help="write the results here")
    args = parser.parse_args()
    results = {}
    for mib in args.mib:
        for optimizer in args.optimizers:
            key = f"{mib} MiB, {optimizer}:"
            runs_of = {
                s: [run_apart(train, s, mib, optimizer, args.steps) for _ in range(args.runs)] for s in args.systems
            }
            results[key] = runs_of
            show(key, runs_of)
    print(f"goal: abele at most {GOAL} x eager")
    write_if_asked(args, results=results)


if __name__ == "__main__":
    main()
