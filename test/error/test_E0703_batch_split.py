"""E0703: a batch that cannot be split."""

import poptorch
import pytest
import torch


def test_error():
    model = poptorch.inferenceModel(torch.nn.ReLU(), poptorch.Options().deviceIterations(2))
    with pytest.raises(AssertionError, match="E0703 batch-split"):
        model(torch.ones(3, 1))
