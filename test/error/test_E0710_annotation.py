"""E0710: a second block on one module."""

import poptorch
import pytest
import torch


def test_error():
    module = poptorch.BeginBlock(torch.nn.ReLU(), ipu_id=0)
    with pytest.raises(poptorch.Error, match="E0710 annotation"):
        poptorch.BeginBlock(module, ipu_id=1)
