"""E0305: a block that the list of stages does not name."""

import poptorch
import pytest
import torch


class Named(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block("mine"):
            return x * 2


def test_error():
    opts = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("other"))
    with pytest.raises(AssertionError, match="E0305"):
        poptorch.inferenceModel(Named(), opts)(torch.ones(2))
