"""E0601: an index that only the running kernel finds out of range."""

import poptorch
import pytest
import torch


class Lookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(4, 3)

    def forward(self, ids):
        with poptorch.Block(ipu_id=0):
            rows = self.table(ids)
        with poptorch.Block(ipu_id=1):
            return poptorch.identity_loss(rows.square(), reduction="mean")


def test_error():
    model = Lookup()
    options = poptorch.Options()
    options.Training.gradientAccumulation(3)
    executor = poptorch.trainingModel(model, options)
    good = torch.tensor([0, 1, 2])
    executor(good)
    weights = model.table.weight.detach().clone()
    with pytest.raises(poptorch.Error, match="E0601 worker-failed") as raised:
        executor(torch.tensor([0, 1, 9]))
    text = str(raised.value)
    assert "aten::embedding" in text and "stage 0" in text and "micro-batch 2" in text and "test_E0601" in text
    lines = text.splitlines()
    assert lines[-2].startswith("  in        ") and raised.value.location == lines[-2][12:] != ""
    assert lines[-1] == "  type      poptorch_cpp_error" and not any(line.strip() == "in" for line in lines)
    assert "\n".join(lines[:-2]) == raised.value.message
    assert torch.equal(model.table.weight, weights)
    assert executor(good).isfinite()
