"""E0102: a training model without a loss."""

import poptorch
import pytest
import torch


def test_error():
    with pytest.raises(poptorch.Error, match="E0102 no-loss"):
        poptorch.trainingModel(torch.nn.Linear(2, 2))(torch.ones(1, 2))
