"""E0101: random numbers of Python and numpy decide what forward does."""

import gc
import importlib
import os
import pathlib
import random
import tempfile
import threading

import numpy as np
import poptorch
import pytest
import sympy
import torch

# What other tests leave running would make warnings of errors.
pytestmark = pytest.mark.own_process

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


dice = random.Random(1)
rng = np.random.default_rng(2)
legacy = np.random.RandomState(3)
hidden = [random.Random(4), np.random.Generator(np.random.Philox(5))]


class Loaded(random.Random):
    pass


loaded = Loaded(6)
# found: what the message says of the generator
HELD = {
    "factor": (lambda x: x * dice.random(), r"\('dice', a random.Random\)"),
    "branch": (lambda x: x * 2 if dice.random() < 2 else x, "'dice'"),
    "numpy": (lambda x: x * rng.random(), r"\('rng', a numpy.random.*PCG64\)"),
    "array": (lambda x: x * torch.from_numpy(rng.normal(size=2)).float(), "'rng'"),
    "state of numpy": (lambda x: x * legacy.rand(), r"\('legacy', a numpy.random.*\)"),
    "spare sample": (lambda x: x * legacy.randn(), "'legacy'"),
    "in a list": (lambda x: x * hidden[0].gauss(0, 1), "a random.Random"),
    "in a list, numpy": (lambda x: x * float(hidden[1].normal()), "numpy.random.*Philox"),
    "type of the program": (lambda x: x * loaded.random(), "'loaded', a .*Loaded"),
    "made without a seed": (lambda x: x * random.Random().random(), "a random.Random"),
    "made without a seed, numpy": (lambda x: x * np.random.default_rng().random(), "without a seed"),
    "made without a seed, state": (lambda x: x * np.random.RandomState().rand(), "without a seed"),
    "drawn before it is seeded": (lambda x: x * (dice.random(), dice.seed(1))[0], "'dice'"),
    "of the system": (lambda x: x * random.SystemRandom().random(), "random.SystemRandom"),
    "seed of the system": (lambda x: x * (torch.seed() % 3), "torch.seed"),
}


@pytest.mark.parametrize("decide, found", HELD.values(), ids=HELD.keys())
def test_generators_of_the_program_are_refused(decide, found):
    legacy.randn()  # leaves a spare: the next one draws nothing else
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: forward draws random numbers from .*" + found):
        poptorch.inferenceModel(Model(decide))(X)
    assert isinstance(dice.random(), float) and random.Random(1).random() == random.Random(1).random()


def _refused(generator):
    hidden.append(generator)
    try:
        with pytest.raises(poptorch.Error, match="E0101 data-dependent: forward draws random numbers from"):
            poptorch.inferenceModel(Model(lambda x: x * hidden[-1].random()))(X)
    finally:
        hidden.pop()


@pytest.mark.parametrize("make", [random.Random, np.random.default_rng, Loaded, lambda: np.random.RandomState(1)])
def test_generators_of_every_age_are_found(make):
    poptorch.inferenceModel(Model(lambda x: x * 2))(X)
    old = make()
    _refused(old)
    for generation in range(3):
        gc.collect(generation)
        _refused(old)
    del gc.callbacks[:]
    again = make()
    gc.collect()
    _refused(again)


def test_generators_that_have_ended_are_forgotten():
    poptorch.inferenceModel(Model(lambda x: x * 2))(X)

    def alive():
        return sum(isinstance(one, np.random.BitGenerator) for one in gc.get_objects())

    before = alive()
    for _ in range(1000):
        held = [np.random.default_rng(1), random.Random(1)]
        gc.collect(0)
        del held
    assert alive() - before <= 300


KEPT = {
    "seeded": lambda x: x * random.Random(7).random() + np.random.default_rng(8).random(),
    "seeded state": lambda x: x * np.random.RandomState(9).rand(),
    "seeded again": lambda x: x * (dice.seed(3), dice.random())[1],
    "not drawn": lambda x: x * (1 if (np.random.default_rng(), random.Random(), np.random.SeedSequence(5)) else 2),
    "kept for later": lambda x: x * (1 if (made.append(np.random.default_rng()), made.append(random.Random())) else 2),
    "name of a file": lambda x: x * (2 if tempfile.mktemp() else 1),
    "order of questions": lambda x: x * lengthBySympy(x),
}
made = []


def lengthBySympy(x):
    """As libraries do that solve for the sizes of tensors."""
    length = sympy.Dummy(integer=True, positive=True)
    (found,) = sympy.solve(sympy.Eq(3 * length, 3 * len(x)), length)
    return int(found)


@pytest.mark.parametrize("function", KEPT.values(), ids=KEPT.keys())
def test_generators_whose_numbers_are_the_same_in_every_call(function):
    model = poptorch.inferenceModel(Model(function))
    for x in (X, X * 2):
        assert torch.equal(model(x), function(x))
    del made[:]
    gc.collect()


def test_generators_that_backward_draws_from():
    class Draws(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * dice.random()

    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return poptorch.identity_loss(Draws.apply(self.w * x), reduction="sum")

    with pytest.raises(poptorch.Error, match="E0101 data-dependent: forward draws random numbers from .*'dice'"):
        poptorch.trainingModel(Trained())(X)


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


def _waitingThread():
    """(thread, event that it waits for)"""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    state = pathlib.Path(f"/proc/self/task/{thread.native_id}/stat")
    while state.read_text().rpartition(")")[2].split()[0] != "S":
        os.sched_yield()
    return thread, done


def test_threads_that_do_nothing_draw_nothing():
    other, done = _waitingThread()
    try:
        with pytest.raises(poptorch.Error, match="E0101 data-dependent: forward draws random numbers from .*'rng'"):
            poptorch.inferenceModel(Model(lambda x: x * rng.random()))(X)
    finally:
        done.set()
        other.join()


def test_functions_that_forward_kept_draw_after_it(tmp_path, monkeypatch):
    """A module imported by forward takes the functions that stand in for those of random."""
    (tmp_path / "imported_by_forward.py").write_text("from random import random\nfrom numpy.random import rand\n")
    monkeypatch.syspath_prepend(tmp_path)

    def imports(x):
        importlib.import_module("imported_by_forward")
        return x * 2

    assert torch.equal(poptorch.inferenceModel(Model(imports))(X), X * 2)
    kept = importlib.import_module("imported_by_forward")
    assert isinstance(kept.random(), float) and isinstance(kept.rand(), float)


def test_other_threads_may_draw_for_themselves(capfd):
    """Nobody knows whose numbers they are: a warning."""
    other, done = _waitingThread()

    def draws(x):
        done.set()
        other.join()
        return x * 0 * rng.random()

    try:
        model = poptorch.inferenceModel(Model(draws))
        assert torch.equal(model(X), X * 0)
    finally:
        done.set()
        other.join()
    assert "'rng'" in (text := capfd.readouterr().err) and "drew random numbers while forward was captured" in text


@pytest.mark.parametrize("generator", ["random.Random()", "numpy.random.default_rng()"])
def test_what_an_imported_module_draws_is_no_number_of_forward(generator, tmp_path, monkeypatch):
    name = f"draws_when_imported_{generator.split('.')[0]}"
    text = f"import random\nimport numpy\nown = {generator}\nstart = own.random()\nfactor = 2.0\n"
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    class Model(torch.nn.Module):
        def forward(self, x):
            return x * importlib.import_module(name).factor

    assert torch.equal(poptorch.inferenceModel(Model())(torch.ones(2)), torch.full((2,), 2.0))
