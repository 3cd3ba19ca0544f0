"""E0708: a missing argument, a model that is none."""

import poptorch
import pytest
import torch


def test_error():
    with pytest.raises(poptorch.Error, match="E0708 arguments: argument 'input' of forward is missing"):
        poptorch.inferenceModel(torch.nn.ReLU())()


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, poptorch.trainingModel])
def test_the_model_is_no_module(wrap):
    with pytest.raises(poptorch.Error, match="E0708 arguments: the model is a function"):
        wrap(lambda x: x)
