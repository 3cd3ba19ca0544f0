"""A training and inference models of one module: whichever is compiled first, all have the values that eager has."""

import copy
import itertools

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, WIDTH = 3, 4


class Net(nn.Module):
    """Forward writes buffers, in training and in inference."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.register_buffer("state", torch.zeros(WIDTH))

    def forward(self, x, y):
        z = self.norm(self.fc(x))
        self.state.add_(x.detach().mean(0))
        z = z + self.state
        return z, F.mse_loss(z, y)


def options():
    opts = abele.Options()
    opts.outputMode(poptorch.OutputMode.All)
    return opts


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def clamp(model, memory):
    model.fc.weight.data.clamp_(-0.1, 0.1)


def reset(model, memory):
    model.state.zero_()


def halve(model, memory):
    for tensor in memory:
        tensor.mul_(0.5)


class Both:
    """A module with models, and its copy in eager PyTorch."""

    def __init__(self, make=Net):
        torch.manual_seed(0)
        self.model = make()
        self.twin = copy.deepcopy(self.model)
        self.sgd = sgd(self.twin)
        self.training = abele.trainingModel(self.model, options(), sgd(self.model))
        self.inference = [abele.inferenceModel(self.model, options()) for _ in range(2)]
        # Taken before the first step, because access to parameters of the module brings their values here.
        self.memory = [[each.detach() for each in model.parameters()] for model in (self.model, self.twin)]

    def train(self):
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        self.sgd.zero_grad()
        expected, loss = self.twin(x, y)
        loss.backward()
        self.sgd.step()
        return torch.equal(self.training(x, y)[0], expected.detach())

    def evaluate(self, index):
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        with torch.no_grad():
            return torch.equal(self.inference[index](x, y)[0], self.twin(x, y)[0])

    def write(self, function):
        function(self.model, self.memory[0])
        function(self.twin, self.memory[1])
        return True

    def memory_is_equal(self):
        return all(map(torch.equal, *self.memory))

    def take(self, step):
        if step == "train":
            return self.train()
        return self.evaluate(step) if isinstance(step, int) else self.write(step)


ORDERS = list(itertools.permutations(["train", 0, 1])) + [("train", 0), (0, "train")]
STEPS = {
    "by turns": ["train", 0, "train", "train", 1, "train", 0, "train"],
    "two evaluations": [0, 1, 0, "train", "train", 1, 1, 0, "train"],
    "parameters": ["train", "train", clamp, "train", 0, clamp, 1, "train", clamp, "train"],
    "buffers": ["train", reset, "train", 0, reset, "train", reset, 1, "train"],
    "memory": ["train", halve, "train", 0, halve, "train", "train", halve, 0],
}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(map(str, order)))
def test_any_order(order, steps, capfd):
    both = Both()
    for index, step in enumerate([*order, *STEPS[steps]]):
        assert both.take(step), f"step {index}: {step}"
        assert both.memory_is_equal(), f"after step {index}: {step}"
    for (name, mine), yours in zip(both.model.state_dict().items(), both.twin.state_dict().values(), strict=True):
        assert torch.equal(mine, yours), name
    assert "does not see" not in capfd.readouterr().err


def test_the_training_has_the_modules_memory_and_inference_gets_it_back():
    both = Both()
    numbers = sum(each.nbytes for each in both.model.state_dict().values())

    def shared(executor):
        return executor.report()["shared_weight_bytes"]

    assert both.evaluate(0) and shared(both.inference[0]) == numbers
    assert both.train() and shared(both.training) == numbers
    assert both.evaluate(0) and shared(both.inference[0]) == 0
    both.training.destroy()
    both.inference[0].copyWeightsToDevice()
    assert both.evaluate(0) and shared(both.inference[0]) == numbers
    assert both.train() and both.evaluate(0) and both.train()


class Remembers(nn.Module):
    """Writes one element of a large buffer in each call."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("memory", torch.zeros(50_000))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    def forward(self, x, y):
        self.memory.index_copy_(0, self.at, x.detach().mean().reshape(1))
        self.at += 7
        z = self.fc(x) + self.memory.sum()
        return z, F.mse_loss(z, y)


def test_single_elements_that_another_model_writes():
    both = Both(Remembers)
    for index, step in enumerate([0, 1, 0, 1, "train", 0, 1, "train", 1, 0]):
        assert both.take(step), f"step {index}: {step}"
    assert torch.equal(both.model.memory, both.twin.memory)


@pytest.mark.parametrize("first", ["train", 0])
def test_replicas_see_what_others_write_into_buffers(first):
    """Every replica has buffers of its own: all get the values that are written between calls."""

    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(WIDTH, WIDTH)
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x, y):
            if not torch.is_grad_enabled():
                self.scale.mul_(0.5)
            z = super().forward(x) * self.scale
            return z, F.mse_loss(z, y)

    torch.manual_seed(0)
    model = Scaled()
    twin = copy.deepcopy(model)
    theirs = sgd(twin)
    training = abele.trainingModel(model, options().replicationFactor(2), sgd(model))
    inference = abele.inferenceModel(model, options())
    for step in [first, "train", 0, "train", "write", "train", 0, 0, "train"]:
        x, y = torch.randn(2 * ROWS, WIDTH), torch.randn(2 * ROWS, WIDTH)
        if step == "write":
            model.scale.fill_(3), twin.scale.fill_(3)
        elif step == 0:
            with torch.no_grad():
                assert torch.equal(inference(x, y)[0], twin(x, y)[0])
        else:
            theirs.zero_grad()
            results = []
            for rows, targets in zip(x.split(ROWS), y.split(ROWS), strict=True):
                z, loss = twin(rows, targets)
                (loss / 2).backward()
                results.append(z.detach())
            theirs.step()
            assert torch.equal(training(x, y)[0], torch.cat(results))


def test_poptorch_has_copies_until_they_are_copied():
    model, x, y = Net(), torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    inference = poptorch.inferenceModel(model)
    inference(x, y)
    training = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.0))
    training(x, y)
    with torch.no_grad():
        model.fc.bias.add_(1)
    before = training(x, y)[0]
    training.copyWeightsToDevice()
    assert not torch.equal(training(x, y)[0], before)
