"""A program that reads its own profile and trace, in the style of the original's analysis library."""

import pathlib
import tempfile

import abele
import poptorch
import pva
import torch


class Names(pva.ProgramVisitor):
    def __init__(self) -> None:
        self.found: list[str] = []

    def visitOnTileExecute(self, part: pva.OnTileExecute) -> None:
        self.found.append(part.name)


def total(event: pva.Event) -> float:
    return event.duration - sum(each.duration for each in event.children())


def main(folder: pathlib.Path) -> None:
    options = poptorch.Options().enableProfiling(str(folder))
    model = abele.inferenceModel(torch.nn.Linear(2, 2), options)
    model.compile(torch.randn(2, 2))
    model.trace(str(folder / "trace.json"), steps=1)
    model(torch.randn(2, 2))
    report: pva.Report = pva.openReport(folder / "inference" / "profile.pop")
    tiles: int = sum(tile.memory.total.includingGaps for tile in report.compilation.tiles)
    names = Names()
    for step in report.execution.steps:
        step.program.accept(names)
        cycles: list[int] = [ipu.cycles for ipu in step.ipus]
        assert len(cycles) == report.compilation.graph.numComputeSets
    assert tiles > 0 and len(names.found) == 1 and report.poplarVersion.string
    trace: pva.Trace = pva.openTrace(str(folder / "trace.json"))
    for process in trace.processes:
        for thread in process.threads:
            assert trace.process(process.pid).thread(thread.tid) is thread
            assert all(total(event) >= 0 for event in thread.events)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(pathlib.Path(temporary))
