"""CTC loss with lengths that come with every batch, as speech models use it."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("one_thread")


class Speech(torch.nn.Module):
    def __init__(self, reduction):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(4, 7)
        self.reduction = reduction

    def forward(self, x, targets, input_lengths, target_lengths):
        log_probs = self.layer(x).log_softmax(-1).transpose(0, 1)
        loss = F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, reduction=self.reduction, zero_infinity=True
        )
        return log_probs, poptorch.identity_loss(loss, reduction="sum")


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(4, 12, 4, generator=g),
        torch.randint(1, 7, (4, 5), generator=g),
        torch.randint(10, 13, (4,), generator=g),
        torch.randint(1, 6, (4,), generator=g),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_training(reduction):
    model = Speech(reduction)
    reference = copy.deepcopy(model)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    opts.outputMode(poptorch.OutputMode.All)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(4):
        inputs = batch(step)
        _, losses = executor(*inputs)
        optimizer.zero_grad()
        for k in range(2):
            loss = reference(*[tensor[2 * k : 2 * k + 2] for tensor in inputs])[1]
            (loss / 2).backward()
            assert torch.equal(losses[k], loss.detach())
        optimizer.step()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert torch.equal(ours, theirs)
