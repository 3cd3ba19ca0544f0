"""E0106: operators that cannot be replayed: generators of the program's own, torch's operators that take functions."""

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


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, g: x + torch.rand(3, generator=g),
        lambda x, g: x + torch.randn(3, generator=torch.Generator().manual_seed(1)),
        lambda x, g: x.clone().uniform_(generator=g),
        lambda x, g: torch.bernoulli(x + 0.5, generator=g),
        lambda x, g: x[torch.randperm(3, generator=g)],
        lambda x, g: torch.multinomial(x + 1, 2, generator=g),
    ],
)
def test_generators_of_the_program(draw):
    model = Draws(draw)
    before = model.generator.get_state()
    with pytest.raises(poptorch.Error, match="E0106 unsupported-op: random numbers from a generator") as raised:
        poptorch.inferenceModel(model)(X)
    assert "test_E0106_generator.py:2" in str(raised.value) and "randomSeed" in str(raised.value)
    assert torch.equal(model.generator.get_state(), before)


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
