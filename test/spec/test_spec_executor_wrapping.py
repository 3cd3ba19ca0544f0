"""executor.md section 1.2: parameters and buffers of a wrapped model look like plain ones."""

import poptorch
import pytest
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        self.register_buffer("scale", torch.tensor(2.5))

    def forward(self, x):
        return poptorch.identity_loss(x * self.weight * self.scale, reduction="mean")


@pytest.mark.spec("executor/1.2")
def test_wrapped_tensors_are_printed_as_plain_ones():
    plain, model = Net(), Net()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    for text in (repr, str, format, lambda tensor: f"{tensor}"):
        assert text(model.weight) == text(plain.weight) and text(model.scale) == text(plain.scale)
    assert f"{model.scale:.3f}" == "2.500"
    executor(torch.ones(1, 2))
    shown = repr(model.weight)  # the newest values, as with any other access
    plain.weight.data.copy_(model.state_dict()["weight"])
    assert shown == repr(plain.weight) != repr(Net().weight)


@pytest.mark.spec("executor/1.2", "executor/1.1/training")
def test_printing_inside_forward_shows_no_values(capsys):
    class Printing(Net):
        def forward(self, x):
            print(self.weight, self.scale)
            return super().forward(x)

    poptorch.trainingModel(Printing())(torch.ones(1, 2))
    assert capsys.readouterr().out.count("<unavailable>") == 2


class Registered(Net):
    """A model whose base class notes its subclasses and needs an argument from each, as registries of models do."""

    known = []

    def __init_subclass__(cls, *, tag):
        super().__init_subclass__()
        Registered.known.append(tag)


class Tagged(Registered, tag="tagged"):
    pass


@pytest.mark.spec("executor/1.2")
def test_wrapping_does_not_register_a_class_of_the_program():
    model = Tagged()
    executor = poptorch.trainingModel(model)
    executor(torch.ones(1, 2))
    assert type(model).__name__ == "PoptorchTagged" and isinstance(model, Tagged)
    assert Registered.known == ["tagged"]
    executor.destroy()
    assert type(model) is Tagged


class Layered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return poptorch.identity_loss(self.layer(x).square(), reduction="mean")


X = torch.linspace(-1, 1, 6).reshape(2, 3)


def eager_loss(model):
    plain = Layered()
    plain.load_state_dict(model.state_dict())
    return plain(X).detach()


@pytest.mark.spec("executor/6/CPU_training_or_manual_edit_after_compile", names=["PoplarExecutor.copyWeightsToDevice"])
@pytest.mark.parametrize("assign", [True, False])
def test_parameters_that_were_replaced_are_uploaded(assign):
    model = Layered()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    executor(X)
    weight, bias = torch.full((2, 3), 2.0), torch.ones(2)
    if assign:
        model.load_state_dict({"layer.weight": weight, "layer.bias": bias}, assign=True)
    else:
        model.layer.weight, model.layer.bias = torch.nn.Parameter(weight.clone()), torch.nn.Parameter(bias.clone())
    executor.copyWeightsToDevice()
    expected = eager_loss(model)
    assert torch.equal(executor(X), expected)
    assert not torch.equal(model.layer.weight, torch.full((2, 3), 2.0))  # what the step made of it
    expected = eager_loss(model)
    assert torch.equal(executor(X), expected)
    assert torch.equal(poptorch.inferenceModel(model)(X), eager_loss(model))
    executor.destroy()
    assert type(model.layer.weight) is torch.nn.Parameter


@pytest.mark.spec("executor/6/CPU_training_or_manual_edit_after_compile")
def test_parameters_that_were_replaced_by_others_of_another_form_are_refused():
    model = torch.nn.Linear(3, 2)
    executor = poptorch.inferenceModel(model)
    executor(X)
    executor.model.weight = torch.nn.Parameter(torch.ones(4, 3))
    executor.model.bias = None
    with pytest.raises(poptorch.Error, match="E0704.*\n.*float32.4, 3.\n.*float32.2, 3."):
        executor.copyWeightsToDevice()
    executor.destroy()
    assert executor(X).shape == (2, 4)
