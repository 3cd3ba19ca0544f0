"""Operators that hand a value to the program, or are run for their effect alone."""

import poptorch
import pytest
import torch


class Asserting(torch.nn.Module):
    def forward(self, x):
        torch._assert_async(x.sum() < 100)
        return x * 2


class Comparing(torch.nn.Module):
    def forward(self, x):
        return x if torch.allclose(x, x + 1) else x * 2


def test_assertions_of_the_device_are_run_in_every_call():
    model = poptorch.inferenceModel(Asserting())
    assert torch.equal(model(torch.ones(4)), torch.full((4,), 2.0))
    with pytest.raises(poptorch.Error, match="E0601"):
        model(torch.full((4,), 100.0))
    assert torch.equal(model(torch.ones(4)), torch.full((4,), 2.0))


def test_allclose_of_inputs_is_a_value_that_the_program_reads():
    with pytest.raises(poptorch.Error, match="E0101"):
        poptorch.inferenceModel(Comparing())(torch.ones(4))
