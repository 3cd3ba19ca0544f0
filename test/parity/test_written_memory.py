"""Buffers and parameters that forward writes, read by other stages and by backward: bit-equal to eager PyTorch."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

ITERATIONS, ACCUMULATION, MICRO_BATCH, WIDTH, STEPS = 2, 6, 2, 4, 2


def begin(stage):
    poptorch.Block.start(f"stage{stage}", ipu_id=stage)


class Written(nn.Module):
    """Stage 1 does what a subclass says; stage 2 makes the loss."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.full((WIDTH,), 2.0))
        self.register_buffer("statistic", torch.ones(WIDTH))

    def forward(self, x, index):
        x = torch.tanh(self.first(x))
        begin(1)
        x = self.middle(x, index)
        begin(2)
        x = self.end(self.last(x))
        return x, poptorch.identity_loss((x**2).mean(), "none")

    def end(self, x):
        return x


class BufferReadInTheNextStage(Written):
    def middle(self, x, index):
        self.statistic.mul_(0.9).add_(x.detach().mean(0))
        return x * self.weight

    def end(self, x):
        return x * self.statistic


class OldAndNewPartsReadInTheNextStage(Written):
    def middle(self, x, index):
        self.old = self.statistic.view(2, 2).t().reshape(4)[1:3].sum() * 1
        self.part = self.statistic[2:]
        self.statistic.add_(x.detach().mean(0))
        return x * self.weight

    def end(self, x):
        return x * self.old * self.part.sum() * self.statistic.view(2, 2)[1, 0]


class BufferReadByBackward(Written):
    def middle(self, x, index):
        self.statistic.add_(1)
        return x * self.weight * self.statistic


class ClampedWeight(Written):
    def middle(self, x, index):
        with torch.no_grad():
            self.weight.clamp_(-1, 1)
        return x * self.weight


class ShrunkWeightReadInTheNextStage(Written):
    def middle(self, x, index):
        with torch.no_grad():
            self.weight.mul_(0.9)
        return x * self.weight

    def end(self, x):
        return x * self.weight


class Table(Written):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, WIDTH, max_norm=0.5)

    def middle(self, x, index):
        return x * self.weight + self.table(index)


class TableTiedToTheNextStage(Table):
    def end(self, x):
        return x @ self.table.weight.t()


MODELS = [
    BufferReadInTheNextStage,
    OldAndNewPartsReadInTheNextStage,
    BufferReadByBackward,
    ClampedWeight,
    ShrunkWeightReadInTheNextStage,
    Table,
    TableTiedToTheNextStage,
]


def eager(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    outputs = []
    for i, (x, index) in enumerate(batches):
        output, loss = model(x, index)
        outputs.append(output.detach())
        (loss / ACCUMULATION).backward()
        if i % ACCUMULATION == ACCUMULATION - 1:
            optimizer.step()
            optimizer.zero_grad()
    return torch.cat(outputs)


def pipelined(schedule):
    return lambda: poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu).schedule(schedule)


STRATEGIES = {
    "sharded": lambda: poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu),
    **{schedule: pipelined(schedule) for schedule in ("1f1b", "gpipe", "zero-bubble")},
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_equals_eager(kind, recompute, strategy):
    torch.manual_seed(0)
    model = kind()
    reference = copy.deepcopy(model)
    options = poptorch.Options()
    options.deviceIterations(ITERATIONS)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.outputMode(poptorch.OutputMode.All)
    options.autoRoundNumIPUs(True)
    options.setExecutionStrategy(STRATEGIES[strategy]())
    if recompute:
        options._Popart.set("autoRecomputation", 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = poptorch.trainingModel(model, options, optimizer=optimizer)
    for _ in range(STEPS):
        x = torch.randn(ITERATIONS * ACCUMULATION * MICRO_BATCH, WIDTH)
        index = torch.randint(0, 8, (len(x),))
        output, _ = training(x, index)
        batches = list(zip(x.split(MICRO_BATCH), index.split(MICRO_BATCH), strict=True))
        assert torch.equal(output, eager(reference, batches))
    training.copyWeightsToHost()
    for (name, ours), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_inference_reads_the_new_statistic_in_the_next_stage():
    model = BufferReadInTheNextStage()
    reference = copy.deepcopy(model)
    options = poptorch.Options()
    options.deviceIterations(5)
    options.autoRoundNumIPUs(True)
    inference = poptorch.inferenceModel(model, options)
    x, index = torch.randn(10, WIDTH), torch.zeros(10, dtype=torch.long)
    with torch.no_grad():
        expected = torch.cat([reference(a, b)[0] for a, b in zip(x.split(2), index.split(2), strict=True)])
    assert torch.equal(inference(x, index)[0], expected)


class ReadBefore(BufferReadInTheNextStage):
    def forward(self, x, index):
        return super().forward(x * self.statistic, index)


class FunctionalMaxNorm(Written):
    def middle(self, x, index):
        return x + F.embedding(index % 4, self.first.weight, max_norm=0.5)


@pytest.mark.parametrize("kind", [ReadBefore, FunctionalMaxNorm])
def test_accumulation_is_refused_where_an_earlier_stage_reads(kind):
    """Stage 0 reads what stage 1 writes in the micro-batch before."""
    model = kind()
    options = poptorch.Options()
    options.Training.gradientAccumulation(ACCUMULATION)
    options.autoRoundNumIPUs(True)
    training = poptorch.trainingModel(model, options, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(poptorch.Error, match="E0403"):
        training(torch.randn(ACCUMULATION * 2, WIDTH), torch.zeros(ACCUMULATION * 2, dtype=torch.long))


class FilledThroughMasks(torch.nn.Module):
    """Learned rows, columns and elements that masks choose, whose number is a value of the device."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 6)
        self.row = torch.nn.Parameter(torch.linspace(-1, 1, 6))
        self.column = torch.nn.Parameter(torch.linspace(0, 1, 4)[:, None])
        self.element = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, x, rows, columns):
        y = self.layer(x)
        y[rows] = self.row * 2
        z = y * 1.5
        z[:, columns] = self.column.square()
        part = z[1:]
        part[part > 0.5] = self.element
        z[rows] = z[:1].detach().clone()
        return z, poptorch.identity_loss(z.square(), "mean")


def test_a_mask_may_name_any_number_of_rows():
    torch.manual_seed(1)
    model = FilledThroughMasks()
    reference = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    for step in range(4):
        inputs = torch.randn(4, 6), torch.arange(4) < step, torch.arange(6) >= 2 * step
        ours, expected = executor(*inputs), reference(*inputs)
        optimizer.zero_grad()
        expected[1].backward()
        optimizer.step()
        assert all(map(torch.equal, ours, expected))
    assert all(map(torch.equal, model.state_dict().values(), reference.state_dict().values()))


OVERLAPS = {
    "copy": lambda x: x[:, 1:].copy_(x[:, :-1]),
    "sum": lambda x: x[:, 1:].add_(x[:, :-1]),
    "product": lambda x: torch.mul(x[:, :-1], 2, out=x[:, 1:]),
}


@pytest.mark.parametrize("write", OVERLAPS.values(), ids=OVERLAPS)
def test_an_argument_of_which_an_operator_reads_what_it_writes(write):
    class Writes(torch.nn.Module):
        def forward(self, x):
            write(x)
            return x * 2

    ours, theirs = (torch.arange(1.0, 21.0).view(4, 5) for _ in range(2))
    assert torch.equal(poptorch.inferenceModel(Writes())(ours), Writes()(theirs))
    assert torch.equal(ours, theirs)
