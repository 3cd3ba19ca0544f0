"""Parameters that are parts of other tensors: rows and columns with gaps between them train as in eager PyTorch."""

import copy

import poptorch
import pytest
import torch

OPTIMIZERS = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.1}),
    (torch.optim.AdamW, {"lr": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.1, "momentum": 0.5, "centered": True}),
]
PARTS = {
    "rows": lambda: torch.randn(6, 3)[::2],
    "columns": lambda: torch.randn(3, 5)[:, 1:4],
    "transposed columns": lambda: torch.randn(3, 5)[:, 1:4].t(),
    "transposed": lambda: torch.randn(3, 3).t(),
    "large": lambda: torch.randn(3, 20003)[:, 2:20001],
}


class Weighted(torch.nn.Module):
    """Two layers. The weight of the first is a part of a larger tensor."""

    def __init__(self, part):
        super().__init__()
        torch.manual_seed(1)
        self.part = torch.nn.Parameter(part())
        self.dense = torch.nn.Parameter(torch.randn(self.part.shape[1], 2))

    def forward(self, x, y):
        with poptorch.Block("first", ipu_id=0):
            hidden = torch.tanh(x @ self.part)
        with poptorch.Block("second", ipu_id=1):
            out = hidden @ self.dense
            return out, torch.nn.functional.mse_loss(out, y)


def whole_of(part):
    """All the memory that a parameter is a part of."""
    return torch.empty(0).set_(part.detach().untyped_storage())


def part_like(whole, part):
    return whole.as_strided(part.shape, part.stride(), part.storage_offset())


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind, values", OPTIMIZERS)
def test_parts_of_tensors_train_as_in_eager(part, kind, values):
    model = Weighted(PARTS[part])
    whole = whole_of(model.part).clone()
    outside = torch.ones(whole.shape, dtype=torch.bool)
    part_like(outside, model.part).fill_(False)
    kept = whole[outside]
    reference = copy.deepcopy(model)
    reference.part = torch.nn.Parameter(part_like(whole, model.part))  # a deep copy has no gaps
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(model, opts, kind(model.parameters(), **values))
    optimizer = kind(reference.parameters(), **values)
    for _ in range(3):
        x, y = torch.randn(8, 3), torch.randn(8, 2)
        _, loss = executor(x, y)
        optimizer.zero_grad()
        for rows in zip(x.chunk(4), y.chunk(4), strict=True):
            expected = reference(*rows)[1]
            (expected / 4).backward()
        optimizer.step()
        assert torch.equal(loss, expected.detach())
    executor.copyWeightsToHost()
    assert torch.equal(model.part, reference.part) and torch.equal(model.dense, reference.dense)
    assert torch.equal(whole_of(model.part)[outside], kept)


def test_their_state_has_their_sizes_and_is_saved(tmp_path):
    model = Weighted(PARTS["rows"])
    optimizer = poptorch.optim.LAMB(model.parameters(), lr=0.1)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    executor = poptorch.trainingModel(model, opts, optimizer)
    x, y = torch.randn(8, 3), torch.randn(8, 2)
    executor(x, y)
    assert optimizer.state_dict()["ipu_state"]["Accl1___part"].shape == (3, 3)
    executor.save(str(tmp_path / "model"))
    loaded = poptorch.load(str(tmp_path / "model"))
    for _ in range(2):
        assert torch.equal(executor(x, y)[1], loaded(x, y)[1])
    assert torch.equal(loaded.model.part, model.part)


@pytest.mark.parametrize("between", [lambda w: w[1], lambda w: w[0:2], lambda w: w])
def test_memory_between_the_elements_belongs_to_nobody(between):
    class Between(torch.nn.Module):
        def __init__(self):
            super().__init__()
            whole = torch.randn(6, 3)
            self.part = torch.nn.Parameter(whole[::2])
            self.other = between(whole)

        def forward(self, x):
            return poptorch.identity_loss((x @ self.part + self.other.sum()).sum(), "none")

    model, x = Between(), torch.ones(2, 3)
    with pytest.raises(poptorch.Error, match=r"E0105(.|\n)*part(.|\n)*clone"):
        poptorch.trainingModel(model)(x)
    assert torch.equal(poptorch.inferenceModel(model)(x), model(x).detach())
    model.other = model.other.clone()
    poptorch.trainingModel(model)(x)


def test_a_parameter_whose_elements_are_one_in_memory_is_refused():
    with pytest.raises(poptorch.Error, match=r"E0105 unsupported-tensor: parameter part"):
        model = Weighted(lambda: torch.randn(1, 3).expand(3, 3))
        poptorch.trainingModel(model, poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution()))(
            torch.randn(2, 3), torch.randn(2, 2)
        )
    frozen = Weighted(lambda: torch.randn(1, 3).expand(3, 3))
    frozen.part.requires_grad_(False)
    opts = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    poptorch.trainingModel(frozen, opts)(torch.randn(2, 3), torch.randn(2, 2))


@pytest.mark.parametrize("share", [lambda w: w.data, lambda w: w.data.t(), lambda w: w.data[:2]])
def test_parameters_that_share_memory_are_refused(share):
    class Shared(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.one = torch.nn.Linear(3, 3)
            self.other = torch.nn.Linear(3, 3)
            self.other.weight = torch.nn.Parameter(share(self.one.weight))

        def forward(self, x):
            return poptorch.identity_loss(x @ self.other.weight.t() + self.one(x).sum(), "mean")

    model = Shared()
    assert torch.equal(poptorch.inferenceModel(model)(torch.ones(1, 3)), model(torch.ones(1, 3)).detach())
    with pytest.raises(poptorch.Error, match=r"E0105(.|\n)*one.weight, other.weight"):
        poptorch.trainingModel(model)(torch.ones(1, 3))
    model.other.weight = torch.nn.Parameter(model.other.weight.data.clone())
    poptorch.trainingModel(model)(torch.ones(1, 3))
