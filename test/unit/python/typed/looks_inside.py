"""Ways to observe a run: channels, a trace, costs, the simulator, a proof."""

from pathlib import Path

import abele
import torch


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with abele.Block("first", ipu_id=0):
            hidden = self.first(x)
        with abele.Block("second", ipu_id=1):
            out: torch.Tensor = self.second(hidden)
        return out


def look(folder: Path) -> int:
    options = abele.Options().deviceIterations(4).showCompilationProgressBar(False)
    model = abele.inferenceModel(Net(), options)
    channel = abele.profiling.Channel("mine")
    model.trace(folder / "step.json", steps=2)
    for _ in channel.spans("batch", range(2)):
        with channel.tracepoint("call"):
            model(torch.ones(4, 4))
    prediction = model.simulate()
    print(prediction["step_ns"], abele.explain(model))
    simulated = abele.simulate(model.costs(), "gpipe", micro_batches=8, training=False)
    report = abele.verify(Net(), torch.ones(4, 4), options=abele.Options().showCompilationProgressBar(False))
    assert report.equal
    step_ns: int = simulated["step_ns"]
    return step_ns


if __name__ == "__main__":
    assert abele.__version__ and abele.ipuHardwareIsAvailable(2)
    print(look(Path(".")))
