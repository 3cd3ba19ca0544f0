"""spec executor.md: the wrapper, its calls, its results."""

import poptorch
import pytest
import torch


@pytest.mark.spec("executor/2/zero_elements", names=["PoplarExecutor.__call__", "poptorch.inferenceModel"])
def test_a_tensor_without_elements_is_refused():
    executor = poptorch.inferenceModel(torch.nn.Linear(3, 2))
    with pytest.raises(poptorch.Error, match="zero|empty|no elements"):
        executor(torch.zeros(0, 3))
    assert executor(torch.zeros(1, 3)).shape == (1, 2)
