"""Operators that return several views, some of which an earlier operator made already."""

import poptorch
import pytest
import torch
from torch import nn


def select_then_unbind(x):
    first = x.select(0, 0) + 1
    return sum(row * (i + 1) for i, row in enumerate(x.unbind())) + first


def unbind_then_select(x):
    rows = x.unbind(1)
    return x.t()[1] + rows[0] * rows[1] + x.transpose(0, 1).unbind()[2]


def overlapping_splits(x):
    a, b = x[:2], x.split([2, x.shape[0] - 2])
    return a * b[0] + x.chunk(2)[0] * b[1][:2]


class Net(nn.Module):
    def __init__(self, views):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.views = views

    def forward(self, x):
        out = self.views(self.fc(x))
        return out, poptorch.identity_loss(out.square(), reduction="sum")


@pytest.mark.parametrize("views", [select_then_unbind, unbind_then_select, overlapping_splits])
def test_equals_eager(views):
    torch.manual_seed(0)
    x = torch.randn(4, 4)
    eager, net = Net(views), Net(views)
    net.load_state_dict(eager.state_dict())
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    model = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    for _ in range(2):
        expected, loss = eager(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert torch.equal(model(x)[0], expected)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), eager.parameters(), strict=True))
