"""E0709: a model wrapped for training twice."""

import poptorch
import pytest
import torch


def test_error():
    model = torch.nn.Linear(1, 1)
    executor = poptorch.trainingModel(model)
    with pytest.raises(RuntimeError, match="E0709 already-wrapped"):
        poptorch.trainingModel(model)
    assert executor.model is model
