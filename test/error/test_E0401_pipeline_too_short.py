"""E0401: fewer micro-batches than stages."""

import poptorch
import pytest
import torch


class Cut(torch.nn.Module):
    def forward(self, x):
        with poptorch.Block(ipu_id=0):
            x = x * 2
        with poptorch.Block(ipu_id=1):
            return x + 1


def test_error():
    with pytest.raises(poptorch.Error, match="E0401 pipeline-too-short"):
        poptorch.inferenceModel(Cut())(torch.ones(2))
    opts = poptorch.Options()
    opts.enforcePipelineMinimum(False)
    assert torch.equal(poptorch.inferenceModel(Cut(), opts)(torch.ones(2)), torch.full((2,), 3.0))
