"""Inference with files: compile, save, load, inner tensors, times."""

import abele
import torch


def classes(rows: int) -> torch.Tensor:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    abele.BeginBlock(net[2], "head", ipu_id=1)
    options = abele.Options().deviceIterations(rows).showCompilationProgressBar(False)
    model = abele.inferenceModel(net, options)
    model.compile(torch.ones(rows, 8))
    names: list[str] = model.getTensorNames()
    assert names
    out: torch.Tensor = model(torch.ones(rows, 8))
    model.save("typed.poptorch")
    loaded = abele.load("typed.poptorch", trust=True)
    again: torch.Tensor = loaded(torch.ones(rows, 8))
    assert torch.equal(out, again)
    report = model.report()
    print(report["step_ns"], model.graphText()[:20], model.memoryReport().keys())
    try:
        abele.load("missing.poptorch", trust=True)
    except abele.Error as error:
        print(error)
    return out.argmax(dim=1)


if __name__ == "__main__":
    print(classes(4))
