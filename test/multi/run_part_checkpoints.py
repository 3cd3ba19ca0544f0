"""run_part_checkpoints.py FOLDER LAST DEVICES [HOW...]: trains a model that is made on the meta device, as one of
several processes, or alone as an ordinary one; goes on from FOLDER's newest checkpoint to step LAST, and writes one.

Leaves FOLDER/../result-LAST-PROCESS.pt: losses by step, and all that a checkpoint of now has of weights and state.
HOW: "compiled": loads when the model has run already. "refused": leaves the error of the loading. "twice": writes one
of the step before, too. "fails": the last process cannot write; leaves the errors.
"""

import os
import pathlib
import sys

import abele
import poptorch
import torch
import torch.nn.functional as F

ACCUMULATION, ROWS, WIDTH, BLOCKS = 4, 2, 12, 4


class Net(torch.nn.Module):
    """Four blocks; the last one reads the first one's weight, and one parameter is nobody's."""

    def __init__(self, devices):
        super().__init__()
        self.devices = devices
        self.embed = torch.nn.Embedding(13, WIDTH)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS))
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, tokens, target):
        x = None
        for n, block in enumerate(self.blocks):
            poptorch.Block.start(str(n), ipu_id=n * self.devices // BLOCKS)
            x = self.embed(tokens) if n == 0 else x
            x = F.dropout(torch.tanh(block(x)), 0.25, self.training)
        loss = F.cross_entropy(F.linear(self.norm(x), self.embed.weight), target)
        return poptorch.identity_loss(loss, reduction="mean")


def batch_of(step):
    draw = torch.Generator().manual_seed(step)
    return [torch.randint(13, (ROWS * ACCUMULATION,), generator=draw) for _ in range(2)]


def model_of(devices, process, processes):
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.randomSeed(7)
    options.threadsPerDevice(1)
    if processes > 1:
        options.Distributed.configureProcessId(process, processes).devicesPerProcess(devices // processes)
    with torch.device("meta" if processes > 1 else "cpu"):
        net = Net(devices)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    model = abele.trainingModel(net, options, optimizer=optimizer)
    abele.init_weights(model, 3)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def train(model, optimizer, scheduler, first, last):
    losses = {}
    for step in range(first, last):
        losses[step] = model(*batch_of(step))
        scheduler.step()
        model.setOptimizer(optimizer)
    return losses


def contents(model):
    """All that a step changes, of all processes."""
    session = model._executable.session
    return {**dict(abele.weights(model)), **session.optimizerState(), "random": session.rngState()}


def failing(folder, model, process, processes):
    """The last process cannot write; then all can."""
    where, code = folder, ""
    if process == processes - 1:
        (folder.parent / "file").write_text("")
        where = folder.parent / "file" / "folder"
    try:
        abele.save_checkpoint(where, model, step=99)
    except abele.Error as error:
        code = str(error)
    return {"error": code, "files": sorted(path.name for path in folder.glob("*"))}


def main(folder, last, devices, *how):
    process, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    model, optimizer, scheduler = model_of(devices, process, processes)
    result = {}
    if "compiled" in how:
        model(*batch_of(99))
    if "refused" in how:
        before = contents(model) if "compiled" in how else None
        try:
            abele.load_checkpoint(folder, model, scheduler=scheduler)
            model(*batch_of(0))
        except abele.Error as error:
            result["error"] = str(error)
        if before is None:
            result["unchanged"] = all(tensor.is_meta for tensor in model.model.parameters())
        else:
            after = contents(model)
            result["unchanged"] = all(torch.equal(after[name], value) for name, value in before.items())
        torch.save(result, folder.parent / f"result-{last}-{process}.pt")
        os._exit(0)  # the others may wait for this process, and hear that it has ended
    found = abele.load_checkpoint(folder, model, scheduler=scheduler)
    step = found["step"] if found else 0
    result["losses"] = train(model, optimizer, scheduler, step, last)
    if "twice" in how:
        abele.save_checkpoint(folder, model, step=last - 1, scheduler=scheduler)
    result["path"] = abele.save_checkpoint(folder, model, step=last, scheduler=scheduler, notes={"by": processes})
    result["whole"] = dict(abele.weights(model))
    result["state"] = model._executable.session.optimizerState()
    if "fails" in how:
        result.update(failing(folder, model, process, processes))
    torch.save(result, folder.parent / f"result-{last}-{process}.pt")
    model.destroy()


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:4]), *sys.argv[4:])
