"""saved_programs.py FOLDER ACTION HOW...: one of several processes, or the only one, that saves or loads a program.

ACTION: "save" trains DONE steps, saves FOLDER/net.poptorch and goes on to LAST. "load" goes on from the file. "refused"
leaves the error of loading, or of a first call. Leaves FOLDER/ACTION-PROCESS.pt.

HOW: "meta": the model is made on the meta device. "torch": the optimizer is torch's. "again": saves twice.
"inference": a program for inference. "differ": each process names a file of its own, too. "fails": one cannot write.
"several": the file knows nothing of several processes. "divided": the processes share one stage, whose operators are
large enough to be divided. "differ" in "refused": the trials of one process have other results.
"""

import os
import pathlib
import resource
import sys

import abele
import poptorch
import torch
import torch.nn.functional as F

STAGES, WIDTH, DONE, LAST = 4, 8, 3, 6


class Net(torch.nn.Module):
    """Four stages; the last one reads the first one's weight, and one parameter is nobody's."""

    def __init__(self, is_divided):
        super().__init__()
        self.is_divided = is_divided
        width = 512 if is_divided else WIDTH
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(width if i else WIDTH, width if i < STAGES - 1 else WIDTH) for i in range(STAGES)
        )
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x):
        for stage, layer in enumerate(self.layers):
            poptorch.Block.start(str(stage), ipu_id=0 if self.is_divided else stage)
            x = F.dropout(torch.tanh(layer(x)), 0.25, self.training)
        y = F.linear(self.norm(x), self.layers[0].weight[:WIDTH])
        return (y, poptorch.identity_loss(y.square(), reduction="mean")) if self.training else y


def batch_of(step):
    return torch.randn(2 * STAGES, WIDTH, generator=torch.Generator().manual_seed(step))


def model_of(process, processes, how):
    options = poptorch.Options().randomSeed(7)
    if "inference" in how:
        options.deviceIterations(STAGES)
    else:
        options.Training.gradientAccumulation(STAGES)
    options.threadsPerDevice(1)
    is_divided = "divided" in how
    options.tensorParallel(2 if is_divided else 1)
    if processes > 1:
        devices = 2 if is_divided else STAGES
        options.Distributed.configureProcessId(process, processes).devicesPerProcess(devices // processes)
    torch.manual_seed(1)
    with torch.device("meta" if "meta" in how and processes > 1 else "cpu"):
        net = Net(is_divided)
    if "inference" in how:
        model = abele.inferenceModel(net.eval(), options)
    else:
        package = torch.optim if "torch" in how else poptorch.optim
        model = abele.trainingModel(net, options, package.AdamW(net.parameters(), lr=0.01))
    abele.init_weights(model, 3)
    return model


def train(model, first, last):
    seen = {"results": [model(batch_of(step)) for step in range(first, last)]}
    seen["weights"] = dict(abele.weights(model))
    seen["state"] = dict(abele.optimizer_state(model))
    return seen


def code_of(call):
    try:
        call()
    except abele.Error as error:
        return str(error)
    return "no error"


def save(folder, process, processes, how):
    model = model_of(process, processes, how)
    path = folder / "net.poptorch"
    train(model, 0, 1)
    if "again" in how:
        model.save(path)
    train(model, 1, DONE)
    refused = {}
    if "differ" in how:
        refused["differ"] = code_of(lambda: model.save(folder / f"net-{process}.poptorch"))
    if "fails" in how:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512 if process == processes - 1 else soft, hard))
        refused["fails"] = code_of(lambda: model.save(path))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        refused["is there"] = path.exists()
    model.save(path)
    return {**train(model, DONE, LAST), "refused": refused}


def load(folder, process, processes, how):
    def edit(options):
        if "several" in how:
            options.Distributed.configureProcessId(process, processes).devicesPerProcess(STAGES // processes)

    model = abele.load(folder / "net.poptorch", edit, trust=True)
    was_compiled = model.isCompiled()
    return {**train(model, DONE, LAST), "was compiled": was_compiled}


def refused(folder, process, processes, how):
    """The error of loading, or of the first call where another process found the damage."""
    if "differ" in how and process == 1:
        os.environ["ABELE_SHARD_TRIALS"] = "fail"
    found = code_of(lambda: abele.load(folder / "net.poptorch", trust=True)(batch_of(0)))
    torch.save(found, folder / f"refused-{process}.pt")
    os._exit(0)  # the others may wait for this process, and hear that it has ended


if __name__ == "__main__":
    folder, action, *how = sys.argv[1:]
    rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    seen = globals()[action](pathlib.Path(folder), rank, size, how)
    torch.save(seen, f"{folder}/{action}-{rank}.pt")
