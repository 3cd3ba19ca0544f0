"""state_dicts.py FOLDER HOW: trains as one of several processes, or alone; leaves what programs get as state in
FOLDER/HOW-PROCESS.pt.

HOW: "whole" models are on the host in each process, those on "meta" have the tensors of the process's stages alone.
Optimizers are torch's; "ours": poptorch's.
"""

import copy
import io
import os
import pathlib
import sys

import abele
import poptorch
import torch
import torch.nn.functional as F

STAGES, WIDTH = 4, 8


class Net(torch.nn.Module):
    """Four stages; the last one reads the first one's weight, and one parameter is nobody's."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(STAGES))
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.unused = torch.nn.Linear(2, 2)

    def forward(self, x):
        for stage, layer in enumerate(self.layers):
            poptorch.Block.start(str(stage), ipu_id=stage)
            x = torch.tanh(layer(x))
        y = F.linear(self.norm(x), self.layers[0].weight)
        return y, poptorch.identity_loss(y.square(), reduction="mean")


def tensors_of(optimizer):
    """All tensors of its state_dict() by name."""
    state = optimizer.state_dict()
    found = {f"{i}.{key}": value for i, entry in state["state"].items() for key, value in entry.items()}
    return {**found, **(state.get("ipu_state") or {})}


def copied(state):
    return {name: value.clone() for name, value in state.items()}


def code_of(call):
    try:
        call()
    except abele.Error as error:
        return str(error)
    return "no error"


def whole(net, model, optimizer, step):
    """What a program gets in its usual ways, each time behind a step."""
    seen = {}
    step()
    seen["module"] = copied(net.state_dict())
    step()
    seen["executor"] = copied(model.state_dict())
    step()
    seen["submodule"] = copied(net.layers[2].state_dict())
    step()
    seen["parameters"] = copied(dict(net.named_parameters()))
    step()
    seen["copy"] = copied(copy.deepcopy(net).state_dict())
    step()
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    seen["pickle"] = copied(torch.load(file, weights_only=False).state_dict())
    step()
    seen["streamed"] = dict(abele.weights(model))
    seen["state streamed"] = dict(abele.optimizer_state(model))
    model.copyWeightsToHost()
    seen["optimizer"] = copied(tensors_of(optimizer))
    step()
    model.destroy()
    seen["destroyed"] = copied(net.state_dict())
    seen["optimizer of the destroyed"] = copied(tensors_of(optimizer))
    return seen


def on_meta(net, model, optimizer, step, infer):
    before = code_of(net.state_dict)
    step()
    errors = {"before": before}
    for name, ask in {
        "module": net.state_dict,
        "executor": model.state_dict,
        "pickle": lambda: torch.save(net, io.BytesIO()),
        "submodule": net.layers[2].state_dict,
        "submodules": net.layers.state_dict,
        "pickle of a submodule": lambda: torch.save(net.layers[2], io.BytesIO()),
        "optimizer": optimizer.state_dict,
        "pickle of the optimizer": lambda: torch.save(optimizer, io.BytesIO()),
    }.items():
        errors[name] = code_of(ask)
    model.copyWeightsToHost()
    errors["optimizer again"] = code_of(optimizer.state_dict)
    step()
    held = [len(entry) for entry in optimizer.state.values() if entry]
    found = {"weights": dict(abele.weights(model)), "state": dict(abele.optimizer_state(model))}
    frozen, inference = infer()
    errors["inference"] = code_of(inference.state_dict)
    errors["module of the inference"] = code_of(frozen.state_dict)
    errors["submodule of the inference"] = code_of(frozen.layers[1].state_dict)
    errors["copy of a submodule"] = code_of(copy.deepcopy(frozen.layers[1]).state_dict)
    return {"errors": errors, "held": len(held), **found}


def main(folder, how):
    process, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    options, of_inference = poptorch.Options(), poptorch.Options().deviceIterations(STAGES)
    options.Training.gradientAccumulation(STAGES)
    for each in (options, of_inference):
        each.threadsPerDevice(1)
        if processes > 1:
            each.Distributed.configureProcessId(process, processes).devicesPerProcess(STAGES // processes)
    torch.manual_seed(1)
    is_meta = "meta" in how and processes > 1
    with torch.device("meta" if is_meta else "cpu"):
        net = Net()
    package = poptorch.optim if "ours" in how else torch.optim
    optimizer = package.AdamW(net.parameters(), lr=0.01)
    model = abele.trainingModel(net, options, optimizer)
    if "meta" in how:
        abele.init_weights(model, 3)
    draw = torch.Generator().manual_seed(5)

    def step():
        model(torch.randn(2 * STAGES, WIDTH, generator=draw))

    def infer():
        with torch.device("meta"):
            frozen = Net().eval()
        inference = abele.inferenceModel(frozen, of_inference)
        abele.init_weights(inference, 4)
        inference(torch.randn(2 * STAGES, WIDTH, generator=draw))
        return frozen, inference

    if "meta" not in how:
        return whole(net, model, optimizer, step)
    if is_meta:
        return on_meta(net, model, optimizer, step, infer)
    step()
    step()
    return {"weights": dict(abele.weights(model)), "state": dict(abele.optimizer_state(model))}


if __name__ == "__main__":
    folder, how = pathlib.Path(sys.argv[1]), sys.argv[2]
    torch.save(main(folder, how), folder / f"{how}-{os.environ.get('RANK', 0)}.pt")
