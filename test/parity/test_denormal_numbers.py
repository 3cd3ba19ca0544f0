"""Workers treat denormal numbers as the thread that calls the model does (torch.set_flush_denormal)."""

import poptorch
import pytest
import torch

pytestmark = pytest.mark.usefixtures("one_thread")


class Small(torch.nn.Module):
    """Numbers below the least normal one, in two stages."""

    def forward(self, x):
        poptorch.Block.start("first", ipu_id=0)
        x = x * 1e-20
        poptorch.Block.start("second", ipu_id=1)
        return x * 1e-19


@pytest.mark.parametrize("strategy", [poptorch.PipelinedExecution, poptorch.ShardedExecution])
def test_denormal_numbers_are_flushed_as_on_the_callers_thread(strategy):
    options = poptorch.Options().deviceIterations(2)
    options.setExecutionStrategy(strategy())
    model, x = poptorch.inferenceModel(Small(), options), torch.ones(2, 9)
    try:
        for flushes in (False, True, False):
            if not torch.set_flush_denormal(flushes):
                pytest.skip("the processor cannot flush denormal numbers")
            # As integers: a comparison of numbers would flush them, too.
            expected, found = (call(x).view(torch.int32) for call in (Small(), model))
            assert bool((expected == 0).all()) == flushes
            assert torch.equal(found, expected)
    finally:
        torch.set_flush_denormal(False)
