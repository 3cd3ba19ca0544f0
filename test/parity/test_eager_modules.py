"""abele.runEagerly: modules whose shapes depend on values run in every micro-batch, with eager's numbers."""

import copy

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F
from against_eager import MICRO_BATCH, OPTIMIZERS, STEPS, options, require_same, train_equally
from test_matrix import make_strategy
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, NUM_EXPERTS, TOP = 8, 4, 2


class Experts(nn.Module):
    """Chooses the tokens of each expert that has some."""

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH, WIDTH) / 3)
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(NUM_EXPERTS))
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, x, chosen, weights, *, power=1):
        result = torch.zeros_like(x)
        mask = F.one_hot(chosen, NUM_EXPERTS).permute(2, 1, 0)
        for expert in mask.sum((-1, -2)).nonzero().flatten():
            place, token = torch.where(mask[expert])
            y = F.silu(x[token] @ self.up[expert]) ** power
            y = self.down[expert.item()](y) * weights[token, place, None] * self.scale
            result.index_add_(0, token, y)
        return result


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, NUM_EXPERTS), Experts()
        self.shared = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(TOP)
        return x + self.experts(x, chosen, weights, power=2) + self.shared(x)


class Mixture(nn.Module):
    def __init__(self, num_layers=2):
        super().__init__()
        self.parts = nn.ModuleList(Layer() for _ in range(num_layers))

    def batch(self, rows):
        return torch.randn(rows, 5, WIDTH), torch.randint(WIDTH, (rows * 5,)).reshape(rows, 5)

    def forward(self, x, target):
        x = x.flatten(0, 1)
        for part in self.parts:
            x = part(x)
        return x, F.cross_entropy(x, target.flatten())


def made():
    torch.manual_seed(0)
    model = Mixture()
    for part in model.parts:
        abele.runEagerly(part.experts)
    return model


def test_without_it_the_message_names_it():
    with pytest.raises(abele.Error, match="(?s)E0101.*abele.runEagerly"):
        abele.inferenceModel(Mixture())(*Mixture().batch(2))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(
    ("strategy", "num_stages"), [("1f1b", 1), ("1f1b", 2), ("zero-bubble", 2), ("serial-phased", 2)]
)
def test_training_equals_eager(strategy, num_stages, recompute):
    model = made()
    reference = copy.deepcopy(model)
    for stage in range(num_stages):
        poptorch.BeginBlock(model.parts[stage], str(stage))
    opts = options(lambda: make_strategy(strategy, num_stages, recompute), 4)
    if recompute:
        opts._Popart.set("autoRecomputation", 3)
    executor = abele.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    train_equally(executor, model, reference, OPTIMIZERS["adamw"](reference.parameters()), 4)


def test_replicas_run_it_one_at_a_time():
    model = made()
    reference = copy.deepcopy(model)
    executor = abele.inferenceModel(model, abele.Options().replicationFactor(2).deviceIterations(3))
    torch.manual_seed(1)
    batch = model.batch(MICRO_BATCH * 6)
    output, _ = executor(*batch)
    parts = zip(*(tensor.split(MICRO_BATCH) for tensor in batch), strict=True)
    assert torch.equal(output, torch.cat([reference(*part)[0] for part in parts]))


def test_names_and_copies_of_the_module_are_its_own():
    model, plain = made(), Mixture()
    assert list(model.state_dict()) == list(plain.state_dict())
    other = copy.deepcopy(model)
    other.parts[0].experts.scale.zero_()
    x = torch.randn(3, WIDTH)
    assert not torch.equal(other.parts[0](x), model.parts[0](x))


def test_several_results_and_plain_arguments():
    class Split(nn.Module):
        def forward(self, x, bound, names):
            above = x[x > bound]
            return {names[0]: above.sum(), "count": torch.tensor(above.numel())}

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.split = abele.runEagerly(Split())

        def forward(self, x):
            found = self.split(x, 0.5, names=["sum"])
            return found["sum"] * 2, found["count"]

    executor = abele.inferenceModel(Net())
    for _ in range(STEPS):
        x = torch.rand(9)
        total, count = executor(x)
        assert torch.equal(total, x[x > 0.5].sum() * 2) and count == (x > 0.5).sum()


class Odd(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        return self.body(self, x)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (lambda self, x: x[x > 0], "other shapes or types than at compile time"),
        (lambda self, x: x + torch.rand(3), "draws random numbers"),
        (lambda self, x: x.add_(1), "writes into a tensor"),
        (lambda self, x: x + self.calls.add_(1), "writes into a tensor"),
        (lambda self, x: (x, 3), "something else than tensors"),
    ],
)
def test_what_it_may_not_do(body, found):
    executor = abele.inferenceModel(abele.runEagerly(Odd(body)))
    with pytest.raises(abele.Error, match="E0708") as raised:
        for x in (torch.ones(3), -torch.ones(3)):
            executor(x)
    assert found in str(raised.value)


def test_no_file_holds_it(tmp_path):
    executor = abele.inferenceModel(made())
    executor.compile(*made().batch(2))
    with pytest.raises(abele.Error, match="E0712"):
        executor.save(str(tmp_path / "model.poptorch"))


def test_the_weights_come_back():
    model = made()
    before = copy.deepcopy(model.state_dict())
    executor = abele.trainingModel(model, abele.Options(), OPTIMIZERS["sgd"](model.parameters()))
    executor(*model.batch(2))
    assert not torch.equal(model.parts[0].experts.up, before["parts.0.experts.up"])
    with pytest.raises(AssertionError):
        require_same(model.state_dict(), before)
