"""Programs whose backward adds to the .grad of a parameter several times: activation checkpointing in its reentrant
form of a module that is used twice."""

import abele
import poptorch
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, WIDTH = 4, 8


class Twice(nn.Module):
    def __init__(self, part, *, mixes):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.part, self.last = nn.Linear(WIDTH, WIDTH), part(), nn.Linear(WIDTH, 3)
        self.mixes = mixes

    def forward(self, x, target):
        with poptorch.Block("a", ipu_id=0):
            h = checkpoint(self.part, self.first(x), use_reentrant=True)
        with poptorch.Block("b", ipu_id=1):
            h = checkpoint(self.part, torch.tanh(h) * 1.7, use_reentrant=True) + h
            h = self.part(h) + self.part(h * 0.3) if self.mixes else h
            return poptorch.identity_loss(nn.functional.mse_loss(self.last(h), target), "none")


PARTS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "norm": lambda: nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh()),
}
SCHEDULES = {
    "one stage": lambda: poptorch.ShardedExecution(),
    "1f1b": lambda: poptorch.PipelinedExecution(),
    "zero-bubble": lambda: poptorch.PipelinedExecution().schedule("zero-bubble"),
    "recomputed": lambda: poptorch.PipelinedExecution().recompute(),
    "phased": lambda: poptorch.SerialPhasedExecution(poptorch.Phase("a"), poptorch.Phase("b")),
}


def eager_step(model, optimizer, x, target, micro_batches):
    optimizer.zero_grad()
    for one, wanted in zip(x.chunk(micro_batches), target.chunk(micro_batches), strict=True):
        loss = model(one, wanted)
        (loss / micro_batches).backward()
    optimizer.step()
    return loss.detach()


def options(strategy, micro_batches):
    made = abele.Options()
    made.Training.gradientAccumulation(micro_batches)
    made._Popart.set("abele.allowShortPipeline", True)
    made.setExecutionStrategy(strategy())
    return made


def require_same(model, twin):
    for (name, value), other in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(value, other), name


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("strategy", SCHEDULES)
@pytest.mark.parametrize("mixes", [False, True], ids=["", "also plain"])
@pytest.mark.parametrize("part", PARTS)
def test_training(part, strategy, micro_batches, mixes):
    model, twin = Twice(PARTS[part], mixes=mixes), Twice(PARTS[part], mixes=mixes)
    ours, theirs = (torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (model, twin))
    executor = abele.trainingModel(model, options(SCHEDULES[strategy], micro_batches), optimizer=ours)
    for _ in range(4):
        x, target = torch.randn(ROWS * micro_batches, WIDTH), torch.randn(ROWS * micro_batches, 3)
        expected = eager_step(twin, theirs, x, target, micro_batches)
        assert torch.equal(executor(x, target), expected)
    executor.copyWeightsToHost()
    require_same(model, twin)


def test_verify():
    model = Twice(PARTS["norm"], mixes=True)
    strategy = SCHEDULES["1f1b"]
    x, target = torch.randn(3 * ROWS, WIDTH), torch.randn(3 * ROWS, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    report = abele.verify(model, (x, target), options=options(strategy, 3), optimizer=optimizer)
    assert report, report
