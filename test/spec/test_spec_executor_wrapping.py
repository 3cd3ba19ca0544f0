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
