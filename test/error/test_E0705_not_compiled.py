"""E0705: weights of a model that was never compiled."""

import poptorch
import pytest
import torch


def test_error():
    with pytest.raises(poptorch.Error, match="E0705 not-compiled"):
        poptorch.inferenceModel(torch.nn.ReLU()).copyWeightsToHost()
