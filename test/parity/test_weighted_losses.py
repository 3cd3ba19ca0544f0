"""Forms of torch's losses that the device of PopTorch lacks: both packages have them with eager's bits."""

import copy

import abele
import poptorch
import pytest
import torch
from torch import nn
from torch.nn import functional as F

WEIGHTS = torch.tensor([1.0, 2.0, 0.5])
STEPS, ACCUMULATION, ROWS = 3, 2, 4


class Classifier(nn.Module):
    def __init__(self, loss):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.loss = nn.Linear(8, 3), loss

    def forward(self, x, target):
        return self.loss(self.layer(x), target)


class Speech(nn.Module):
    """Every row speaks the same words, whose labels come one behind the other, or as padded rows."""

    def __init__(self, is_padded, reduction):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.is_padded, self.reduction = nn.Linear(8, 4), is_padded, reduction
        self.register_buffer("lengths", torch.full((ROWS,), 6))

    def forward(self, x, target):
        scores = self.layer(x.unsqueeze(0).expand(6, -1, -1)).log_softmax(-1)
        words = torch.stack([target + 1, 3 - target], dim=1)
        words = words if self.is_padded else words.flatten()
        loss = F.ctc_loss(scores, words, self.lengths, self.lengths // 3, reduction=self.reduction)
        return abele.identity_loss(loss, "mean")


LOSSES = {
    "module": lambda: Classifier(nn.CrossEntropyLoss(weight=WEIGHTS.clone())),
    "smoothed": lambda: Classifier(lambda x, t: F.cross_entropy(x, t, WEIGHTS, reduction="sum", label_smoothing=0.1)),
    "ignored": lambda: Classifier(lambda x, t: F.cross_entropy(x, t, weight=WEIGHTS, ignore_index=1, reduction="sum")),
    "distances": lambda: Classifier(lambda x, t: F.l1_loss(x, F.one_hot(t, 3) * 0.5, weight=WEIGHTS.expand(ROWS, 3))),
    "nll": lambda: Classifier(lambda x, t: F.nll_loss(x.log_softmax(-1), t, WEIGHTS)),
    "ctc of each row": lambda: Speech(is_padded=True, reduction="none"),
    "ctc of concatenated targets": lambda: Speech(is_padded=False, reduction="mean"),
}


@pytest.mark.parametrize("package", [abele, poptorch], ids=lambda package: package.__name__)
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("loss", LOSSES)
def test_both_packages_have_them(loss, devices, package):
    model = LOSSES[loss]()
    reference = copy.deepcopy(model)
    options = package.Options().outputMode(package.OutputMode.All)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.threadsPerDevice(torch.get_num_threads())
    options.setExecutionStrategy(package.PipelinedExecution(package.AutoStage.AutoSplit).devices(devices))
    executor = package.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(STEPS):
        x, target = torch.randn(ROWS * ACCUMULATION, 8), torch.randint(3, (ROWS * ACCUMULATION,))
        losses = executor(x, target)
        optimizer.zero_grad()
        expected = [reference(a, b) for a, b in zip(x.split(ROWS), target.split(ROWS), strict=True)]
        for each in expected:
            (each / ACCUMULATION).backward()
        optimizer.step()
        assert torch.equal(losses, torch.stack(expected))
    executor.copyWeightsToHost()
    assert torch.equal(model.layer.weight, reference.layer.weight)


class Smoothed(nn.Module):
    def __init__(self, form, **settings):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.form, self.settings = nn.Linear(8, 5), form, settings
        self.register_buffer("weight", torch.rand(5) + 0.1)

    def forward(self, x, target):
        scores, target = self.form(self.layer(x), target)
        loss = F.cross_entropy(scores, target, self.weight, label_smoothing=0.1, **self.settings)
        return loss, abele.identity_loss(loss, "mean")


FORMS = {
    "rows": lambda scores, target: (scores, target),
    "pictures": lambda scores, target: (scores.view(3, 4, 9, 5).permute(0, 3, 1, 2), target.view(3, 4, 9)),
    "probabilities": lambda scores, target: (scores, F.one_hot(target, 5) * 0.75),
}


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("form", FORMS)
def test_smoothed_targets_of_weighted_classes(form, reduction, devices):
    """The number of targets that are ignored is another one in each step."""
    ignored = {} if form == "probabilities" else {"ignore_index": 2}
    model = Smoothed(FORMS[form], reduction=reduction, **ignored)
    reference = copy.deepcopy(model)
    options = abele.Options().outputMode(abele.OutputMode.All).threadsPerDevice(torch.get_num_threads())
    options.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(devices))
    executor = abele.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(8):
        x, target = torch.randn(108, 8), torch.randint(5, (108,))
        target[: 5 * step] = 2
        optimizer.zero_grad()
        expected = reference(x, target)
        expected[1].backward()
        optimizer.step()
        for ours, theirs in zip(executor(x, target), expected, strict=True):
            assert torch.equal(ours, theirs), step
    executor.copyWeightsToHost()
    assert torch.equal(model.layer.weight, reference.layer.weight)
