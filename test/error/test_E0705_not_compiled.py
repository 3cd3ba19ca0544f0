"""E0705: weights of a model that was never compiled."""

import poptorch
import pytest
import torch


def test_error():
    with pytest.raises(poptorch.Error, match="E0705 not-compiled"):
        poptorch.inferenceModel(torch.nn.ReLU()).copyWeightsToHost()


def test_they_are_of_the_python_layer():
    model = poptorch.inferenceModel(torch.nn.ReLU())
    for call in ("copyWeightsToHost", "copyWeightsToDevice", "attachToDevice", "detachFromDevice", "compilationTime"):
        with pytest.raises(poptorch.Error, match="E0705") as raised:
            getattr(model, call)()
        assert (raised.value.type, raised.value.location) == ("poptorch_py_error", "")
    model(torch.ones(2))
    with pytest.raises(poptorch.Error, match="attached already") as raised:
        model.attachToDevice()
    assert raised.value.type == "poptorch_py_error"
