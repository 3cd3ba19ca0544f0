"""E0711: an option that the devices do not honour."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options().replicationFactor(2)
    with pytest.raises(poptorch.Error, match="E0711 not-available: replicationFactor > 1"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(2))
