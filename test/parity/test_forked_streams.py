"""Random numbers of programs that put the stream back or seed it in forward."""

import abele
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

SEED, ROWS, WIDTH = 11, 3, 4


def fork():
    return torch.random.fork_rng()


def more_inside(h):
    with fork():
        h = F.dropout(h, 0.5)
    return h + torch.rand(2).sum()


def only_inside(h):
    with fork():
        return F.dropout(h, 0.5)


def behind_others(h):
    h = h + torch.rand(3).sum()
    with fork():
        return F.dropout(h, 0.5)


def normal_numbers(h):
    with fork():
        h = h + torch.randn(5).sum()
    return h + torch.randn(1)


def state_put_back(h):
    state = torch.get_rng_state()
    h = F.dropout(h, 0.5)
    torch.set_rng_state(state)
    return F.dropout(h, 0.5)


def nothing_drawn(h):
    with fork():
        return h * 2


class Drawing(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layer, self.draw = nn.Linear(WIDTH, WIDTH), draw

    def forward(self, x, y):
        return F.mse_loss(self.draw(self.layer(x)), y)


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize(
    "draw", [more_inside, only_inside, behind_others, normal_numbers, state_put_back, nothing_drawn]
)
def test_the_next_micro_batch_draws_from_where_forward_left_the_stream(draw, accumulation):
    torch.manual_seed(0)
    model, twin = Drawing(draw), Drawing(draw)
    twin.load_state_dict(model.state_dict())
    options = abele.Options().randomSeed(SEED)
    options.Training.gradientAccumulation(accumulation)
    executor = abele.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.0))
    x, y = (torch.randn(ROWS * accumulation, WIDTH) for _ in range(2))
    torch.manual_seed(SEED)
    for _ in range(3):
        losses = [twin(a, b) for a, b in zip(x.split(ROWS), y.split(ROWS), strict=True)]
        assert torch.equal(executor(x, y).flatten()[-1], losses[-1].detach())


def seeded(h):
    torch.manual_seed(3)
    return F.dropout(h, 0.5)


def seeded_in_a_fork(h):
    with fork():
        torch.manual_seed(3)
        return h + torch.rand(WIDTH)


@pytest.mark.parametrize("draw", [seeded, seeded_in_a_fork])
def test_numbers_behind_a_seed_are_refused(draw):
    model = Drawing(draw)
    with pytest.raises(abele.Error, match="E0106 .*outside the model's random stream") as raised:
        abele.trainingModel(model)(torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH))
    assert "test_forked_streams.py:" in str(raised.value)
