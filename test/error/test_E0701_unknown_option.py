"""E0701: a name that no expert setting has."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options()
    opts._Popart.set("enableOutlinings", True)
    with pytest.raises(poptorch.Error, match="E0701 unknown-option: Unknown bool option enableOutlinings"):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(2))
