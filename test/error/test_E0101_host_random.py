"""E0101: random numbers of Python and numpy decide what forward does."""

import random

import numpy as np
import poptorch
import pytest
import torch

X = torch.tensor([1.0, 2.0])

DECIDES = {
    "branch": lambda x: x * 2 if random.random() < 0.5 else x,
    "branch on uniform": lambda x: x * 2 if random.uniform(0, 1) > 0.1 else x,
    "branch on numpy": lambda x: x * 2 if np.random.uniform(0, 1) < 0.5 else x,
    "branch on rand": lambda x: x * 2 if np.random.rand() < 0.5 else x,
    "factor": lambda x: x * random.random(),
    "operand": lambda x: torch.mul(x, random.random()),
    "tensor": lambda x: x * torch.tensor(float(np.random.random())),
    "choice": lambda x: x * random.choice([1, 2]),
    "array": lambda x: x * torch.from_numpy(np.random.rand(2)).float(),
}


class Model(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize("decide", DECIDES.values(), ids=DECIDES.keys())
def test_numbers_of_the_host_are_refused(decide):
    draw = random.random
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: forward draws random numbers from"):
        poptorch.inferenceModel(Model(decide))(X)
    assert random.random is draw and isinstance(random.random(), float) and isinstance(np.random.rand(), float)


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: np.random.uniform(0, 1), lambda: torch.rand([])])
def test_layers_that_are_never_dropped_are_captured(draw):
    def drops(x):
        return x if draw() < 0.0 else x * 2

    assert torch.equal(poptorch.inferenceModel(Model(drops))(X), X * 2)


def test_numbers_of_a_seed_in_forward_are_constants():
    def seeded(x):
        np.random.seed(3)
        random.seed(4)
        return x * float(np.random.rand()) + random.randint(1, 9)

    model = poptorch.inferenceModel(Model(seeded))
    for x in (X, X * 2):
        assert torch.equal(model(x), seeded(x))


def test_layers_that_are_dropped_at_random_have_a_remedy():
    with pytest.raises(poptorch.Error, match="E0101 data-dependent") as raised:
        poptorch.inferenceModel(Model(lambda x: x if torch.rand([]) < 0.5 else x * 2))(X)
    assert "torch.where" in str(raised.value)
