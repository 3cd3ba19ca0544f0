"""E0106: operators that cannot be replayed: generators that forward makes or moves, torch's operators that take
functions."""

import poptorch
import pytest
import torch

X = torch.zeros(3)


class Draws(torch.nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x):
        return self.draw(x, self.generator)


def after_two_draws():
    generator = torch.Generator().manual_seed(4)
    torch.rand(2, generator=generator)
    return generator.get_state()


MOVED = after_two_draws()


def moves(x, g):
    g.set_state(MOVED)
    return x + torch.rand(3, generator=g)


def seeds_behind(x, g):
    x = x + torch.rand(3, generator=g)
    g.manual_seed(9)
    return x


def seeds_between(x, g):
    return seeds_behind(x, g) + torch.rand(3, generator=g)


@pytest.mark.parametrize(
    ("draw", "found"),
    [
        (lambda x, g: x + torch.randn(3, generator=torch.Generator().manual_seed(1)), "that forward makes"),
        (moves, "whose state forward has replaced"),
        (seeds_behind, "seeds or replaces a generator of the program after it has drawn"),
        (seeds_between, "seeded or replaced inside forward"),
        (lambda x, g: poptorch.for_loop(2, lambda y: y + torch.rand(3, generator=g), [x])[0], "body of a loop"),
    ],
)
def test_generators_whose_numbers_cannot_be_drawn_again(draw, found):
    model = Draws(draw)
    before = model.generator.get_state()
    with pytest.raises(poptorch.Error, match="E0106 unsupported-op") as raised:
        poptorch.inferenceModel(model)(X)
    assert found in str(raised.value) and "test_E0106_generator.py:" in str(raised.value)
    assert torch.equal(model.generator.get_state(), before)


def test_a_generator_of_this_process_is_in_no_file(tmp_path):
    model = poptorch.inferenceModel(Draws(lambda x, g: x + torch.rand(3, generator=g)))
    model.compile(X)
    with pytest.raises(poptorch.Error, match="E0712 .*: a program that draws from a generator of its own"):
        model.save(str(tmp_path / "model.poptorch"))


def test_the_default_generator_is_the_stream_of_the_device():
    torch.manual_seed(5)
    model = poptorch.inferenceModel(Draws(lambda x, g: x + torch.rand(3, generator=torch.default_generator)))
    model.compile(X)
    torch.manual_seed(5)
    assert torch.equal(model(X), torch.rand(3))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, g: torch.cond(x.sum() > 0, torch.neg, torch.clone, (x,)),
        lambda x, g: torch._higher_order_ops.while_loop(lambda v: v.sum() < 9, lambda v: (v + 1,), (x,))[0],
    ],
)
def test_operators_that_take_functions(function):
    with pytest.raises(poptorch.Error, match="E0106 unsupported-op: torch's operator") as raised:
        poptorch.inferenceModel(Draws(function))(X)
    assert "poptorch.cond" in str(raised.value)
