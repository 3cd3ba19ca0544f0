"""Batch normalisation of tensors that lie in others: parts of channels, transposed maps, every second element."""

import copy

import poptorch
import pytest
import torch

nn = torch.nn
VIEWS = {
    "a part of the channels": (nn.BatchNorm2d, lambda x: torch.split(x, [4, 2], 1)[0]),
    "transposed": (nn.BatchNorm2d, lambda x: x[:, :4].transpose(2, 3)),
    "every second column": (nn.BatchNorm2d, lambda x: x[:, 1:5, :, ::2]),
    "rows of features": (nn.BatchNorm1d, lambda x: x[:, :4, 0, 0]),
    "features last": (nn.BatchNorm1d, lambda x: x.flatten(2)[:, :6, :4].transpose(1, 2)),
    "volumes": (nn.BatchNorm3d, lambda x: x[:, :4, None].transpose(2, 4)),
    "channels last": (nn.BatchNorm2d, lambda x: x[:, :4].contiguous(memory_format=torch.channels_last)),
}


class Normed(nn.Module):
    def __init__(self, kind, view):
        super().__init__()
        self.view, self.scale, self.norm = view, nn.Conv2d(6, 6, 1), kind(4)

    def forward(self, x):
        out = self.norm(self.view(self.scale(x)))
        return out, poptorch.identity_loss((out * out.detach().cos()).mean(), "none")


@pytest.mark.parametrize("name", VIEWS)
def test_training_and_inference(name, one_thread):
    torch.manual_seed(3)
    model = Normed(*VIEWS[name])
    reference = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.randn(3, 6, 4, 6)
        out, loss = executor(x)
        optimizer.zero_grad()
        expected, expected_loss = reference(x)
        expected_loss.backward()
        optimizer.step()
        assert torch.equal(out, expected) and torch.equal(loss, expected_loss)
    trained = executor.state_dict()
    for key, value in reference.state_dict().items():
        assert torch.equal(trained[key], value), key
    model.eval(), reference.eval()
    assert torch.equal(poptorch.inferenceModel(model)(x)[0], reference(x)[0])
