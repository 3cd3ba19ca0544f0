"""E0711: an option that the devices do not honour."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(0, 2)
    with pytest.raises(poptorch.Error, match="E0711 not-available: more than one process"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(2))
