"""links_program.py FOLDER DEVICES NAME...: what processes that hold the stages of a replica find of their links.

Leaves FOLDER/NAME-PROCESS.pt. Programs that are compiled lie in the folder that LINKS_CACHE names, if any. So many
neighbours as LINKS_ON_HOST says are told that they are on one host. Process P takes the machine file that LINKS_FILE_P
names, if any. With measure as the only NAME: abele env --measure.
"""

import os
import sys

import abele
import torch
import torch.nn.functional as F
from abele.cli import environment

ROWS, WIDTH, BLOCKS, ACCUMULATION, CALLS = 4, 16, 4, 6, 2
SLOW = {
    "name": "described",
    "space_devices": 1,
    "links": [{"name": "a slow wire", "latency_ns": 2_000_000, "bytes_per_s": 1_000_000}],
}


class Blocks(torch.nn.Module):
    """Blocks on so many devices; 0: nobody says where they are."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))

    def forward(self, x, target):
        for block, layer in enumerate(self.layers):
            if self.devices:
                abele.Block.start(str(block), ipu_id=block * self.devices // BLOCKS)
            x = torch.tanh(layer(x))
        return x, abele.identity_loss(F.mse_loss(x, target), reduction="mean")


def _strategy(name, devices):
    if name == "split":
        return abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(devices).schedule("auto")
    strategy = abele.PipelinedExecution(abele.AutoStage.SameAsIpu)
    if name == "auto":
        strategy.schedule("auto")
    return strategy.costs({"machine": SLOW}) if name == "described" else strategy


def trained(name, devices, processes=1):
    torch.manual_seed(1)
    dtype = torch.half if name == "rounded" else torch.float32
    model = Blocks(0 if name == "split" else devices).to(dtype)
    opts = abele.Options().outputMode(abele.OutputMode.All).randomSeed(7)
    opts.Training.gradientAccumulation(ACCUMULATION)
    opts.Precision.enableStochasticRounding(name == "rounded")
    opts.setExecutionStrategy(_strategy(name, devices))
    opts.threadsPerDevice(1)
    if folder := os.environ.get("LINKS_CACHE"):
        opts.enableExecutableCaching(folder)
    if processes > 1:
        opts.Distributed.configureProcessId(int(os.environ["RANK"]), processes).devicesPerProcess(devices // processes)
    executor = abele.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    draw = torch.Generator().manual_seed(3)
    batches = [
        [torch.randn(ACCUMULATION * ROWS, WIDTH, generator=draw).to(dtype) for _ in range(2)] for _ in range(CALLS)
    ]
    found = {
        "results": [executor(*batch) for batch in batches],
        **{key: executor.report()[key] for key in ("from_cache", "links")},
    }
    if not found["from_cache"]:
        found["machine"] = executor.costs().get("machine")
        found["explain"] = abele.explain(executor)
        found["transfers"] = executor.simulate().get("transfers", [])
    executor.copyWeightsToHost()
    found["weights"] = {key: value.clone() for key, value in model.state_dict().items()}
    executor.destroy()
    return found


def main():
    folder, devices, *names = sys.argv[1:]
    if on_host := os.environ.get("LINKS_ON_HOST"):
        os.environ["LOCAL_WORLD_SIZE"] = on_host
    if path := os.environ.get(f"LINKS_FILE_{os.environ['RANK']}"):
        os.environ["ABELE_MACHINE"] = path
    if names == ["measure"]:
        if status := environment.main(["--measure"]):
            sys.exit(status)
        return
    for name in names:
        found = trained(name, int(devices), int(os.environ["WORLD_SIZE"]))
        torch.save(found, f"{folder}/{name}-{os.environ['RANK']}.pt")


if __name__ == "__main__":
    main()
