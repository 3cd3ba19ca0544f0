"""E0708: a missing argument."""

import poptorch
import pytest
import torch


def test_error():
    with pytest.raises(poptorch.Error, match="E0708 arguments: argument 'input' of forward is missing"):
        poptorch.inferenceModel(torch.nn.ReLU())()
