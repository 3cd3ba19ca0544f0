"""Devices that share no memory (separateMemory): the bits of eager PyTorch, and what is received is counted."""

import copy

import abele
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

ACCUMULATION, MICRO_BATCH, WIDTH, STEPS = 5, 2, 8, 3


class TiedBothWays(nn.Module):
    """Each stage updates a weight that the other one reads; a buffer that both read and nobody writes."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x, target):
        abele.Block.start("a", ipu_id=0)
        x = torch.tanh(self.first(x)) * self.scale
        x = x + F.linear(x, self.second.weight.detach())
        abele.Block.start("b", ipu_id=1)
        x = torch.tanh(self.second(x)) * self.scale + F.linear(x, self.first.weight)
        return x, F.mse_loss(x, target)


def options(accumulation=ACCUMULATION, separate_memory=True):
    opts = abele.Options().outputMode(abele.OutputMode.All)
    opts.Training.gradientAccumulation(accumulation)
    opts.threadsPerDevice(1)
    opts.separateMemory(separate_memory)
    return opts


def batches():
    torch.manual_seed(1)
    rows = MICRO_BATCH * ACCUMULATION
    return [(torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)) for _ in range(STEPS)]


def eager_step(model, optimizer, batch):
    losses = []
    for rows in zip(*(tensor.split(MICRO_BATCH) for tensor in batch), strict=True):
        loss = model(*rows)[1]
        (loss / ACCUMULATION).backward()
        losses.append(loss.detach())
    optimizer.step()
    optimizer.zero_grad()
    return torch.stack(losses)


def require_same_state(one, other):
    for (name, ours), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_weights_that_two_stages_read():
    torch.manual_seed(0)
    model = TiedBothWays()
    reference = copy.deepcopy(model)
    executor = abele.trainingModel(model, options(), torch.optim.AdamW(model.parameters(), lr=0.01))
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.01)
    for batch in batches():
        assert torch.equal(executor(*batch)[1].reshape(-1), eager_step(reference, optimizer, batch))
    require_same_state(model, reference)


def test_clipping_looks_at_the_gradients_of_all_spaces():
    def train(separate_memory):
        torch.manual_seed(0)
        model = TiedBothWays()
        optimizer = abele.optim.AdamW(model.parameters(), lr=0.01, max_grad_norm=0.1)
        executor = abele.trainingModel(model, options(separate_memory=separate_memory), optimizer)
        losses = [executor(*batch)[1] for batch in batches()]
        executor.copyWeightsToHost()
        return torch.cat(losses), model

    (ours, model), (theirs, reference) = train(True), train(False)
    assert torch.equal(ours, theirs)
    require_same_state(model, reference)


def test_weights_that_the_program_writes_between_calls_reach_every_copy():
    torch.manual_seed(0)
    model = TiedBothWays().eval()
    opts = options(accumulation=1).deviceIterations(ACCUMULATION)
    executor = abele.inferenceModel(model, opts)
    for batch in batches():
        expected = torch.cat([model(*rows)[0] for rows in zip(*(t.split(MICRO_BATCH) for t in batch), strict=True)])
        assert torch.equal(executor(*batch)[0], expected)
        with torch.no_grad():
            model.first.weight.add_(0.1)
        model.scale.mul_(0.9)
        executor.copyWeightsToDevice()


def test_the_report_counts_what_is_received():
    class TwoLayers(TiedBothWays):
        def forward(self, x, target):
            abele.Block.start("a", ipu_id=0)
            x = torch.tanh(self.first(x))
            abele.Block.start("b", ipu_id=1)
            x = torch.tanh(self.second(x))
            return x, F.mse_loss(x, target)

    model = TwoLayers()
    opts = options()
    executor = abele.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    executor(*batches()[0])
    devices = executor.memoryReport()["devices"]
    # x from a to b and its gradient back: the micro-batch in work, and the next one.
    assert [device["by_class"]["received"] for device in devices] == [2 * 64, 2 * 64]
    assert [stage["peak_bytes"] for stage in executor.report()["stages"]] == [d["peak_bytes"] for d in devices]
    text = executor.planText()
    assert "receive 0 task=F1" in text and "receive 1 task=B0" in text


def test_a_parameter_that_forward_writes_elsewhere_is_refused_as_in_one_memory():
    class Renormalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(4, WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, index, target):
            abele.Block.start("a", ipu_id=0)
            x = self.table(index)
            abele.Block.start("b", ipu_id=1)
            x = self.head(x) + F.embedding(index, self.table.weight, max_norm=0.5)
            return x, F.mse_loss(x, target)

    model = Renormalised()
    executor = abele.trainingModel(model, options(), torch.optim.SGD(model.parameters(), lr=0.1))
    rows = MICRO_BATCH * ACCUMULATION
    with pytest.raises(abele.Error, match="E0403"):
        executor(torch.zeros(rows, dtype=torch.long), torch.randn(rows, WIDTH))
