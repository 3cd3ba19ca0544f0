"""E0707: options changed after wrapping."""

import poptorch
import pytest
import torch


def test_error():
    opts = poptorch.Options()
    poptorch.inferenceModel(torch.nn.ReLU(), opts)
    with pytest.raises(AttributeError, match="E0707 frozen: can't modify frozen"):
        opts.deviceIterations(2)
    opts.clone().deviceIterations(2)
