"""E0708: a missing argument, a model that is none, one without shapes."""

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


def test_lazy_modules_without_shapes():
    model, x = torch.nn.Sequential(torch.nn.LazyLinear(3)), torch.ones(2, 4)
    with pytest.raises(poptorch.Error, match="E0708 arguments: 0.weight, 0.bias of the model have no shape yet"):
        poptorch.trainingModel(model)
    executor = poptorch.inferenceModel(model)
    with pytest.raises(poptorch.Error, match="E0708 arguments: 0.weight, 0.bias of the model have no shape yet"):
        executor(x)
    expected = model(x)
    assert torch.equal(executor(x), expected)
