"""Executors work whatever mode of torch their caller is in, as training loops of other libraries are."""

import contextlib

import poptorch
import pytest
import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.BatchNorm1d(4)
        self.layer = torch.nn.Linear(4, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x, y=None):
        self.calls += 1
        out = self.layer(self.norm(x))
        return out if y is None else (out, torch.nn.functional.cross_entropy(out, y))


@pytest.mark.parametrize("compiled_in", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("run_in", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_inference(compiled_in, run_in):
    model = Model().eval()
    executor = poptorch.inferenceModel(model)
    with compiled_in():
        executor(torch.randn(3, 4))
    with run_in():
        x = torch.randn(3, 4)
        y = executor(x)
        with torch.no_grad():
            assert torch.equal(y, model(x))
    assert torch.equal(executor(x), y)
    with torch.no_grad():
        model.layer.bias += 1
    executor.copyWeightsToDevice()
    assert torch.allclose(executor(x), y + 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_training(mode):
    def train(context):
        model = Model()
        executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
        torch.manual_seed(1)
        with context():
            losses = [executor(torch.randn(6, 4), torch.arange(6) % 2)[1].clone() for _ in range(3)]
        executor.copyWeightsToHost()
        return losses, [tensor.clone() for tensor in model.state_dict().values()]

    ours, expected = train(mode), train(contextlib.nullcontext)
    for mine, theirs in zip(ours[0] + ours[1], expected[0] + expected[1], strict=True):
        assert torch.equal(mine, theirs)
