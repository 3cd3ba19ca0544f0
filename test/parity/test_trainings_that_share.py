"""Two trainings whose modules share submodules take turns: each goes on from what the other left, as in eager."""

import abele
import pytest
import torch
from torch import nn
from torch.nn import functional as F

ROWS = 4


def mlp(*widths):
    layers = []
    for width, following in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(width, following), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


def judged(scores, is_real):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(is_real)))


class Judges(nn.Module):
    """The critic's part of a GAN: the generator only draws."""

    def __init__(self, generator, critic):
        super().__init__()
        self.generator, self.critic = generator, critic

    def forward(self, noise, real):
        with torch.no_grad():
            drawn = self.generator(noise)
        return abele.identity_loss(judged(self.critic(real), True) + judged(self.critic(drawn), False), "none")


class Draws(Judges):
    """The generator's part: it is trained through the critic."""

    def forward(self, noise, real):
        return judged(self.critic(self.generator(noise)), True)


class Task(nn.Module):
    """A head on an encoder that another task trains as well; the normalisation has running statistics."""

    def __init__(self, encoder, head):
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x, target):
        return F.mse_loss(self.head(self.encoder(x)), target)


class Gan:
    def __init__(self):
        torch.manual_seed(1)
        self.parts = mlp(4, 8, 8), mlp(8, 8, 1)
        self.models = [Judges(*self.parts), Draws(*self.parts)]
        generator, critic = self.parts
        self.optimizers = [torch.optim.Adam(part.parameters(), lr=0.01) for part in (critic, generator)]

    def batch(self, _):
        return torch.randn(ROWS, 4), torch.randn(ROWS, 8)


class Tasks:
    def __init__(self):
        torch.manual_seed(1)
        encoder = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.parts = encoder, nn.Linear(8, 2), nn.Linear(8, 3)
        self.models = [Task(encoder, head) for head in self.parts[1:]]
        self.optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in self.models]

    def batch(self, index):
        return torch.randn(ROWS, 4), torch.randn(ROWS, 2 + index)


# Which of the two steps; a GAN's critic is often ahead.
@pytest.mark.parametrize("order", [(0, 1, 0, 1, 0, 1), (1, 0, 0, 0, 1, 1, 0)])
@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("pair", [Gan, Tasks])
def test_trainings_take_turns(pair, shares, order):
    ours, theirs = pair(), pair()
    options = abele.Options()
    options.threadsPerDevice(torch.get_num_threads())
    options.shareWeights(shares)
    executors = [
        abele.trainingModel(model, options, optimizer)
        for model, optimizer in zip(ours.models, ours.optimizers, strict=True)
    ]
    torch.manual_seed(2)
    for step, index in enumerate(order):
        batch = ours.batch(index)
        loss = executors[index](*batch)
        theirs.optimizers[index].zero_grad()
        expected = theirs.models[index](*batch)
        expected.backward()
        theirs.optimizers[index].step()
        assert torch.equal(loss, expected), f"step {step}: {loss.item()} instead of {expected.item()}"
        if step == 2:  # either may be read, or asked for all, at any time
            assert torch.equal(ours.parts[0][0].weight, theirs.parts[0][0].weight)
            executors[1 - index].copyWeightsToHost()
    executors[0].destroy()
    for part, other in zip(ours.parts, theirs.parts, strict=True):
        for (name, value), expected in zip(part.state_dict().items(), other.state_dict().values(), strict=True):
            assert torch.equal(value, expected), name
    assert type(ours.models[0]) is type(theirs.models[0])
    batch = ours.batch(1)
    assert torch.equal(executors[1](*batch), theirs.models[1](*batch))  # goes on alone
