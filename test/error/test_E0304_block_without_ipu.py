"""E0304: a block without ipu_id under AutoStage.SameAsIpu."""

import poptorch
import pytest
import torch


class Named(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block("mine"):
            return x * 2


def test_error():
    opts = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution())
    with pytest.raises(AssertionError, match="E0304"):
        poptorch.inferenceModel(Named(), opts)(torch.ones(2))
