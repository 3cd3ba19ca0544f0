"""E0801: a batch sampler together with a batch size."""

import poptorch
import pytest
import torch


def test_error():
    data = torch.utils.data.TensorDataset(torch.arange(4))
    sampler = torch.utils.data.BatchSampler(range(4), 2, drop_last=False)
    with pytest.raises(poptorch.Error, match="E0801 data-source"):
        poptorch.DataLoader(poptorch.Options(), data, batch_size=2, batch_sampler=sampler)
