"""E0702: gradient accumulation in inference."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match="E0702 option-value") as raised:
        poptorch.inferenceModel(torch.nn.ReLU(), opts)
    assert "deviceIterations" in str(raised.value)


def test_more_micro_batches_than_can_be_counted():
    opts = poptorch.Options().deviceIterations(2**32).replicationFactor(2**32)
    with pytest.raises(poptorch.Error, match="E0702 .*more micro-batches than can be counted"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(1))
