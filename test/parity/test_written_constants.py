"""Tensors kept outside of parameters and buffers that forward writes: a warning by name."""

import poptorch
import pytest
import torch


class Cached(torch.nn.Module):
    def __init__(self, is_buffer=False):
        super().__init__()
        self.inner = torch.nn.Identity()
        if is_buffer:
            self.inner.register_buffer("cache", torch.zeros(2))
        else:
            self.inner.cache = torch.zeros(2)
        self.kept = {"state": [torch.zeros(2)]}
        self.table = torch.ones(2)

    def forward(self, x):
        self.inner.cache += x
        return self.inner.cache * self.table


class Deep(Cached):
    def forward(self, x):
        self.kept["state"][0].add_(x)
        made = torch.zeros(2)
        made.add_(x)
        return self.kept["state"][0] * 1 + made


@pytest.mark.parametrize(("make", "name"), [(Cached, "inner.cache"), (Deep, "kept['state'][0]")])
def test_the_tensor_is_named_once_with_the_remedy(make, name, capfd):
    compiled = poptorch.inferenceModel(make())
    first, second = compiled(torch.ones(2)), compiled(torch.ones(2))
    assert torch.equal(first, second)  # spec executor.md 5: each run starts from the captured value
    log = capfd.readouterr().err
    assert log.count("forward writes into") == 1
    assert f"forward writes into {name}, " in log and "register_buffer" in log


def test_buffers_are_not(capfd):
    compiled = poptorch.inferenceModel(Cached(is_buffer=True))
    compiled(torch.ones(2))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert "forward writes into" not in capfd.readouterr().err
