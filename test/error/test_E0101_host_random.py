"""E0101: random numbers of Python and numpy decide what forward does."""

import random
import threading

import numpy as np
import poptorch
import pytest
import torch

# What other tests leave running would make warnings of errors.
pytestmark = pytest.mark.own_process

X = torch.tensor([1.0, 2.0])

DECIDES = {
    "factor": lambda x: x * random.random(),
    "uniform": lambda x: x * random.uniform(1, 2),
    "operand": lambda x: torch.mul(x, random.random()),
    "tensor": lambda x: x * torch.tensor(float(np.random.random())),
    "rand": lambda x: x + np.random.rand(),
    "choice": lambda x: x * random.choice(range(10**9)),
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


dice, rng = random.Random(1), np.random.default_rng(2)


def test_functions_of_the_host_draw_in_every_step():
    drawn = []

    def draws(x):
        drawn.append((dice.random(), rng.random(), random.random()))
        return x * drawn[-1][0]

    class Calls(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.draws = poptorch.CPU(draws, "draws")

        def forward(self, x):
            return self.draws(x + 1)

    model = poptorch.inferenceModel(Calls())
    for _ in range(2):
        assert torch.equal(model(X), (X + 1) * drawn[-1][0])
    assert len(set(drawn)) >= 2


def test_other_threads_may_draw_for_themselves(capfd):
    """The program does not depend on these numbers."""

    def draws(x):
        other = threading.Thread(target=random.random)
        other.start()
        other.join()
        return x * 2

    assert torch.equal(poptorch.inferenceModel(Model(draws))(X), X * 2)
    assert "numbers were drawn from random while forward was captured" in capfd.readouterr().err
