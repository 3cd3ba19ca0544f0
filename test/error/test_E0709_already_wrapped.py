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


class Forgetful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.switch = {"loss": False}  # an executor has a shallow copy of the module

    def forward(self, x):
        y = (self.weight * x).sum()
        return poptorch.identity_loss(y, reduction="none") if self.switch["loss"] else y


def wrapped(fails):
    model = Forgetful()
    executor = poptorch.trainingModel(model)
    if fails:
        with pytest.raises(poptorch.Error, match="E0102"):
            executor(torch.ones(2))
    return model, executor


@pytest.mark.parametrize("of_the_model", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_model_that_never_compiled_can_be_wrapped_again(fails, of_the_model):
    model, executor = wrapped(fails)
    (model if of_the_model else executor).destroy()
    model.switch["loss"] = True
    again = poptorch.trainingModel(model)
    again(torch.ones(2))
    assert not torch.equal(model.weight, torch.ones(2)) and again.model is model
    with pytest.raises(RuntimeError, match="E0709"):
        executor(torch.ones(2))
    with pytest.raises(RuntimeError, match="E0709"):
        poptorch.trainingModel(model)
    again.destroy()
    assert type(model) is Forgetful
    executor(torch.ones(2))
    with pytest.raises(RuntimeError, match="E0709"):
        poptorch.trainingModel(model)


def test_a_destroyed_executor_that_never_compiled_can_go_on():
    model, executor = wrapped(fails=True)
    executor.destroy()
    model.switch["loss"] = True
    executor(torch.ones(2))
    with pytest.raises(RuntimeError, match="E0709"):
        poptorch.trainingModel(model)
    assert not torch.equal(model.weight, torch.ones(2))
