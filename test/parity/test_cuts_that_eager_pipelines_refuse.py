"""Shapes of models and calls that hook-based pipelines refuse: bit-equal to eager PyTorch here."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

ACCUMULATION, MICRO_BATCH, WIDTH, STEPS = 7, 2, 8, 3


def begin(stage):
    poptorch.Block.start(f"stage{stage}", ipu_id=stage)


class Layers(nn.Module):
    def __init__(self, count=4):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(count))


class SkipOverTwoStages(Layers):
    def forward(self, x, target):
        early = torch.relu(self.layers[0](x))
        begin(1)
        x = torch.tanh(self.layers[1](early))
        begin(2)
        x = torch.tanh(self.layers[2](x))
        begin(3)
        x = self.layers[3](x) * early
        return x, F.mse_loss(x, target)


class WeightOfFirstAndLastStage(Layers):
    def forward(self, x, target):
        x = torch.tanh(self.layers[0](x))
        begin(1)
        x = torch.tanh(self.layers[1](x))
        begin(2)
        x = F.linear(x, self.layers[0].weight)
        return x, F.mse_loss(x, target)


class StageWithoutParameters(Layers):
    def forward(self, x, target):
        x = self.layers[0](x)
        begin(1)
        x = torch.softmax(x, dim=-1) * x
        begin(2)
        x = self.layers[1](x)
        return x, F.mse_loss(x, target)


class VeryUnevenCuts(Layers):
    def __init__(self):
        super().__init__(24)

    def forward(self, x, target):
        x = torch.tanh(self.layers[0](x))
        begin(1)
        for layer in self.layers[1:23]:
            x = x + torch.tanh(layer(x))
        begin(2)
        x = self.layers[23](x)
        return x, F.mse_loss(x, target)


class BranchesThatJoinLater(Layers):
    def forward(self, x, target):
        left = torch.relu(self.layers[0](x))
        begin(1)
        right = torch.sigmoid(self.layers[1](x))
        begin(2)
        far = self.layers[2](right)
        begin(3)
        x = self.layers[3](torch.cat([left, right], dim=0)[: len(x)] + far * left)
        return x, F.mse_loss(x, target)


def options(accumulation, **popart):
    opts = poptorch.Options().autoRoundNumIPUs(True).outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(accumulation)
    opts.threadsPerDevice(1)
    for name, value in popart.items():
        opts._Popart.set(f"abele.{name}", value)
    return opts


def optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def batch(accumulation):
    return torch.randn(MICRO_BATCH * accumulation, WIDTH), torch.randn(MICRO_BATCH * accumulation, WIDTH)


def eager_step(model, stepper, inputs, accumulation):
    losses = []
    for rows in zip(*(tensor.split(MICRO_BATCH) for tensor in inputs), strict=True):
        loss = model(*rows)[1]
        (loss / accumulation).backward()
        losses.append(loss.detach())
    stepper.step()
    stepper.zero_grad()
    return torch.stack(losses)


def require_same_training(model_class, accumulation, opts):
    torch.manual_seed(0)
    model = model_class()
    reference = copy.deepcopy(model)
    executor = poptorch.trainingModel(model, opts, optimizer(model))
    stepper = optimizer(reference)
    for _ in range(STEPS):
        inputs = batch(accumulation)
        assert torch.equal(executor(*inputs)[1], eager_step(reference, stepper, inputs, accumulation))
    for (name, ours), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("separate_memory", [False, True])
@pytest.mark.parametrize(
    "model_class",
    [SkipOverTwoStages, WeightOfFirstAndLastStage, StageWithoutParameters, VeryUnevenCuts, BranchesThatJoinLater],
)
def test_model(model_class, separate_memory):
    require_same_training(model_class, ACCUMULATION, options(ACCUMULATION, separateMemory=separate_memory))


def test_fewer_micro_batches_than_stages():
    require_same_training(SkipOverTwoStages, 2, options(2, allowShortPipeline=True))


def test_the_minimum_of_poptorch_names_the_switch():
    model = SkipOverTwoStages()
    executor = poptorch.trainingModel(model, options(2), optimizer(model))
    with pytest.raises(poptorch.Error, match="E0401") as raised:
        executor(*batch(2))
    assert "options.enforcePipelineMinimum(False)" in str(raised.value)


def test_training_and_inference_of_one_model_with_other_batch_sizes():
    torch.manual_seed(0)
    model = SkipOverTwoStages()
    reference = copy.deepcopy(model)
    training = poptorch.trainingModel(model, options(ACCUMULATION), optimizer(model))
    inference = poptorch.inferenceModel(model, options(1).deviceIterations(4))
    stepper = optimizer(reference)
    x, target = torch.randn(4 * 5, WIDTH), torch.randn(4 * 5, WIDTH)
    for _ in range(STEPS):
        inputs = batch(ACCUMULATION)
        assert torch.equal(training(*inputs)[1], eager_step(reference, stepper, inputs, ACCUMULATION))
        with torch.no_grad():
            expected = torch.cat([reference(*rows)[0] for rows in zip(x.split(5), target.split(5), strict=True)])
        assert torch.equal(inference(x, target)[0], expected)


def test_nan_losses_are_delivered():
    model = SkipOverTwoStages()
    executor = poptorch.trainingModel(model, options(ACCUMULATION), torch.optim.SGD(model.parameters(), lr=0.0))
    x, target = batch(ACCUMULATION)
    x[2 * MICRO_BATCH] = float("nan")
    loss = executor(x, target)[1]
    assert loss.isnan().tolist() == [k == 2 for k in range(ACCUMULATION)]
