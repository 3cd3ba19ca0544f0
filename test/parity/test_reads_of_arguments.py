"""Integers that follow from integer arguments alone: forward may read them, and each step checks that they stay."""

import copy

import abele
import poptorch
import pytest
import torch
from against_eager import cut, eager, options, require_same

pytestmark = pytest.mark.usefixtures("one_thread")

PIECE, PIECES, WIDTH = 9, 3, 8
CHANGED = "E0101 data-dependent: a value that forward read"


def short(accumulation):
    """Pipelines that are longer than their micro-batches are many."""
    opts = options(poptorch.PipelinedExecution, accumulation)
    opts.enforcePipelineMinimum(False)
    return opts


class WordsAndImages(torch.nn.Module):
    """Puts the pieces of an image where the words say so, after a check that formats what it found."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        words, image = torch.nn.Embedding(10, WIDTH), torch.nn.Linear(4, WIDTH)
        self.parts = torch.nn.ModuleList([image, words, torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1)])

    def forward(self, ids, pieces):
        image, words, middle, last = self.parts
        seen, found = image(pieces), (ids == PIECE).sum()
        message = f"{found} words for {pieces[..., 0].numel()} pieces, {int(found)} again"
        if found * WIDTH != seen.numel():
            raise ValueError(message)
        x = words(ids).masked_scatter((ids == PIECE)[..., None], seen)
        x = last(torch.relu(middle(x)))
        return x, poptorch.identity_loss(x.square().mean(), "none")

    @staticmethod
    def batch(rows, pieces=PIECES):
        ids = torch.randint(0, PIECE, (rows, 7))
        for row in ids:
            row[torch.randperm(7)[:pieces]] = PIECE
        return ids, torch.randn(rows, PIECES, 4)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_words_that_stand_for_pieces_of_an_image(stages):
    model = WordsAndImages()
    reference = copy.deepcopy(model)
    cut(model, stages)
    make = lambda module: torch.optim.SGD(module.parameters(), lr=0.1)  # noqa: E731
    executor = poptorch.trainingModel(model, short(4), make(model))
    optimizer = make(reference)
    for _ in range(3):
        batch = model.batch(8)
        for ours, theirs in zip(executor(*batch), eager(reference, optimizer, batch, 4), strict=True):
            assert torch.equal(ours, theirs)
    executor.copyWeightsToHost()
    require_same(model.state_dict(), reference.state_dict())

    ids, pieces = model.batch(8)
    ids[5][ids[5] == PIECE] = 0  # of the third micro-batch
    with pytest.raises(poptorch.Error, match=CHANGED) as raised:
        executor(ids, pieces)
    assert "test_reads_of_arguments.py:" in str(raised.value)
    executor.copyWeightsToHost()
    require_same(model.state_dict(), reference.state_dict())
    batch = model.batch(8)
    for ours, theirs in zip(executor(*batch), eager(reference, optimizer, batch, 4), strict=True):
        assert torch.equal(ours, theirs)


READS = {
    "item": lambda ids: ids.max().item(),
    "int": lambda ids: int(ids.max()),
    "index": lambda ids: len(range(ids.max())),
    "text": lambda ids: int(f"{ids.max()}"),
    "list": lambda ids: sum(ids.tolist()),
    "list of numbers": lambda ids: [each.item() for each in ids][1],
    "array": lambda ids: int(ids[1:].numpy().sum()),
    "of another type": lambda ids: int((ids.float() / 2).ceil().int().sum()),
    "no integer": lambda ids: (ids / 2).sum().item(),
    "length of a range": lambda ids: torch.arange(ids.max()).numel(),
    "number of elements": lambda ids: torch.zeros(ids.max(), 2).numel(),
    "comparison": lambda ids: 3 if torch.equal(ids[1:], ids.flip(0)[:-1]) else 5,
    "written in place": lambda ids: (ids.clone().mul_(2))[1].item(),
}


class Reads(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x, ids):
        return x * self.read(ids)


@pytest.mark.parametrize("read", READS)
def test_what_is_read_is_a_number_of_the_program(read):
    net = Reads(READS[read])
    model = poptorch.inferenceModel(net, poptorch.Options().deviceIterations(2))
    x, ids = torch.randn(4, 5), torch.tensor([1, 4, 3, 1, 4, 3])
    for batch in (x, x + 1):
        expected = torch.cat([net(part, ids[:3]) for part in batch.split(2)])
        assert torch.equal(model(batch, ids), expected)
    other = ids.clone()
    other[4] = 6  # of the second micro-batch
    if read == "comparison":
        other[5] = other[4] = other[3]
    with pytest.raises(poptorch.Error, match="E0101"):
        model(x, other)
    assert torch.equal(model(x, ids), torch.cat([net(part, ids[:3]) for part in x.split(2)]))


def test_the_message_says_what_to_do_where_it_differs_from_batch_to_batch():
    model = poptorch.inferenceModel(Reads(READS["item"]))
    x = torch.randn(2, 5)
    model(x, torch.tensor([4, 2]))
    with pytest.raises(poptorch.Error, match=CHANGED) as raised:
        model(x, torch.tensor([5, 2]))
    text = str(raised.value)
    assert "abele.runEagerly" in text and "trustReads" not in text
    assert all(shown in text for shown in ("test_reads_of_arguments.py:", "5", "4"))


class Scales(torch.nn.Module):
    def forward(self, x, ids):
        return x * ids.max().item()


def test_a_saved_program_checks_too(tmp_path):
    x, ids = torch.randn(2, 5), torch.tensor([4, 2])
    model = poptorch.inferenceModel(Scales())
    model.compileAndExport(str(tmp_path / "model.poptorch"), x, ids)
    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    assert torch.equal(loaded(x, ids), x * 4)
    with pytest.raises(poptorch.Error, match=CHANGED):
        loaded(x, ids + 1)


def test_an_array_of_an_argument_cannot_be_written():
    def write(ids):
        array = ids.numpy()
        array[0] = 3
        return int(ids[0])

    with pytest.raises(ValueError, match="read-only"):
        poptorch.inferenceModel(Reads(write))(torch.ones(2, 5), torch.tensor([4, 2]))


class Counts(torch.nn.Module):
    def __init__(self, read):
        super().__init__()
        self.read = read
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("resting", torch.zeros((), dtype=torch.long))

    def forward(self, x, ids):
        self.count.add_(1)
        return x * self.read(self, x, ids)


class Crops(torch.nn.Module):
    """To the sizes that come with each picture."""

    def forward(self, x, sizes):
        x = x.clone()
        parts = [picture[: size[0] // 2, 1 : size[1] // 2] for picture, size in zip(x, sizes, strict=True)]
        x[0, : sizes[0, 0]] = 3.0
        return torch.cat([part.flatten() for part in parts]), x


@pytest.mark.parametrize(
    ("package", "opts"), [(abele, abele.Options), (poptorch, lambda: poptorch.Options().trustReads(True))]
)
def test_slices_to_sizes_that_come_as_arguments(package, opts):
    model, net = package.inferenceModel(Crops(), opts()), Crops()
    x, sizes = torch.randn(2, 6, 6), torch.tensor([[4, 8], [6, 12]])
    for batch in (x, x + 1):
        assert all(map(torch.equal, model(batch, sizes), net(batch, sizes)))
    with pytest.raises(package.Error, match=CHANGED):
        model(x, sizes + 2)


def test_slices_to_sizes_are_refused_in_poptorch():
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: a slice whose length is not a constant"):
        poptorch.inferenceModel(Crops())(torch.randn(2, 6, 6), torch.tensor([[4, 8], [6, 12]]))


WHOLE = {
    "all are": lambda x: (x > 0).sum() == x.numel(),
    "not all are": lambda x: not ((x > 0).sum() != x.numel()),
    "none is": lambda x: torch.isnan(x.log()).sum() == 0,
}


class Asks(torch.nn.Module):
    def __init__(self, asks):
        super().__init__()
        self.asks = asks

    def forward(self, x):
        return x * 2 if self.asks(x) else x


@pytest.mark.parametrize("asks", WHOLE.values(), ids=WHOLE.keys())
def test_questions_about_all_elements_that_count(asks):
    model, x = poptorch.inferenceModel(Asks(asks)), torch.tensor([1.0, 2.0, 3.0])
    for batch in (x, x + 1):
        assert torch.equal(model(batch), batch * 2)
    with pytest.raises(poptorch.Error, match=CHANGED):
        model(-x)
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: forward reads"):
        poptorch.inferenceModel(Asks(lambda x: (x > 0).sum() == 2))(x)


REFUSED = {
    "of a float": lambda net, x, ids: x.sum().long().item(),
    "of both": lambda net, x, ids: (ids * x[0, 0]).int().sum().item(),
    "of a weight": lambda net, x, ids: net.weight.argmax().item(),
    "at a position": lambda net, x, ids: net.weight[ids].int().tolist()[0],
    "of a counter": lambda net, x, ids: net.count.item(),
    "drawn": lambda net, x, ids: torch.randint(0, 3, ()).item(),
    "written over": lambda net, x, ids: ids.clone().copy_(x[0, :2]).max().item(),
    "of a counter that is written later": lambda net, x, ids: net.resting.item() + net.resting.add_(1),
    "in a loop": lambda net, x, ids: poptorch.for_loop(2, lambda i: i * i.max().item(), [ids])[0].sum(),
}


class Flagged(torch.nn.Module):
    """Its buffers say what it does, and forward leaves them as they are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("doubles", torch.tensor(1.0))
        self.register_buffer("mask", torch.tensor([True, False, True, True, False]))
        self.register_buffer("table", torch.tensor([1.5, 2.5]))

    def forward(self, x, ids):
        if self.doubles:
            x = x * 2
        return x[:, self.mask] * self.table.max().item() + float(self.table.numpy()[0]) + int(ids[0] + self.mask[0])


def test_buffers_that_forward_does_not_write():
    net, x, ids = Flagged(), torch.randn(2, 5), torch.tensor([4, 2])
    model = poptorch.inferenceModel(net)
    assert torch.equal(model(x, ids), net(x, ids))
    changes = {"doubles": 0.0, "mask": torch.tensor([True, False, True, False, False]), "table": 7.0}
    for name, change in changes.items():
        before = net.get_buffer(name).clone()
        net.get_buffer(name).copy_(torch.as_tensor(change))
        model.copyWeightsToDevice()
        with pytest.raises(poptorch.Error, match="E0101 data-dependent: .* in this step"):
            model(x, ids)
        net.get_buffer(name).copy_(before)
        model.copyWeightsToDevice()
        assert torch.equal(model(x, ids), net(x, ids))


@pytest.mark.parametrize("read", REFUSED.values(), ids=REFUSED.keys())
def test_other_reads_are_refused_when_the_program_is_compiled(read):
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: forward reads"):
        poptorch.inferenceModel(Counts(read))(torch.ones(2, 5), torch.tensor([2, 1]))


SHAPES = {
    "mask": lambda x, ids: x[ids > 2],
    "masked_select": lambda x, ids: x.masked_select((ids > 2)[:, None]),
    "nonzero": lambda x, ids: x[ids.gt(2).nonzero()[:, 0]],
    "where": lambda x, ids: x[torch.where(ids > 2)],
    "repeat_interleave": lambda x, ids: torch.repeat_interleave(x, ids, dim=0),
    "unique": lambda x, ids: x * torch.unique(ids).sum() + len(torch.unique(ids)),
    "bincount": lambda x, ids: x * torch.bincount(ids)[2] + len(torch.bincount(ids)),
    "labels that count": lambda x, ids: torch.nn.functional.cross_entropy(x[ids > 2], ids[ids > 2] - 3),
}


class Selects(torch.nn.Module):
    def __init__(self, select):
        super().__init__()
        torch.manual_seed(0)
        self.select, self.parts = select, torch.nn.ModuleList([torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)])

    def forward(self, x, ids):
        for part in self.parts:
            x = part(x)
        y = self.select(x, ids)
        return y, poptorch.identity_loss(y.square().sum(), "none")


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("select", SHAPES.values(), ids=SHAPES.keys())
def test_shapes_that_follow_from_arguments(select, stages):
    model = Selects(select)
    reference = copy.deepcopy(model)
    cut(model, stages)
    make = lambda module: torch.optim.SGD(module.parameters(), lr=0.01)  # noqa: E731
    opts = short(2).outputMode(poptorch.OutputMode.Final)
    executor, optimizer = poptorch.trainingModel(model, opts, make(model)), make(reference)
    ids = torch.tensor([1, 3, 4, 0, 0, 4, 1, 3])
    for shift in (0, 1, 2):  # other rows, as many of each
        x, now = torch.randn(8, 3), torch.cat([part.roll(shift) for part in ids.split(4)])
        optimizer.zero_grad()
        for rows in (slice(0, 4), slice(4, 8)):
            y, loss = reference(x[rows], now[rows])
            (loss / 2).backward()
        optimizer.step()
        results = executor(x, now)
        assert torch.equal(results[0], y) and torch.equal(results[1], loss)
    executor.copyWeightsToHost()
    require_same(model.state_dict(), reference.state_dict())
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: an operator's result has another shape") as raised:
        executor(x, torch.tensor([1, 3, 4, 0, 5, 4, 5, 3]))
    assert "test_reads_of_arguments.py:" in str(raised.value) and "abele.runEagerly" in str(raised.value)
    executor.copyWeightsToHost()
    require_same(model.state_dict(), reference.state_dict())
    results = executor(x, now)
    assert torch.equal(results[0], reference(x[4:], now[4:])[0])


def test_shapes_that_follow_from_other_values_are_refused():
    for shape in (lambda x, ids: x[x > 0], lambda x, ids: x[ids > x[:, 0]], lambda x, ids: torch.unique(x.long())):
        with pytest.raises(poptorch.Error, match="E0101 data-dependent: an operator whose result has another shape"):
            poptorch.inferenceModel(Selects(shape))(torch.ones(4, 3), torch.tensor([1, 2, 3, 0]))
