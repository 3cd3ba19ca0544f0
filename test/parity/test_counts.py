"""What a step does, as counts that no busy machine changes: instructions, bytes that they name, allocations, copies of
weights. A change that makes one larger has to say here why."""

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, options
from traffic import traffic

pytestmark = pytest.mark.usefixtures("one_thread")

ACCUMULATION = 4


def counts(network, fusion):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    opts = options(poptorch.PipelinedExecution, ACCUMULATION).fusion(fusion)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    batch = model.batch(MICRO_BATCH * ACCUMULATION)
    for _ in range(3):
        executor(*batch)
    text = executor._executable.session.executableText()
    allocations = executor.report()["heap_allocations"]
    executor.destroy()
    weights = sum(4 * parameter.numel() for parameter in model.parameters())
    tensors = len(list(model.parameters()))
    return traffic(text), traffic(text, update=True), allocations, text, tensors, weights


# Instructions of a micro-batch, and the bytes that they read and write.
LIMITS = {
    ("Decoder", "exact"): (172, 537720),
    ("Decoder", "off"): (191, 607656),
    ("ResNet", "exact"): (91, 120252),
    ("ResNet", "off"): (93, 120476),
}


@pytest.mark.parametrize(("network", "fusion"), LIMITS)
def test_a_step(network, fusion):
    micro_batch, update, allocations, text, tensors, weights = counts(network, fusion)
    assert micro_batch == LIMITS[network, fusion]
    # One pass over memory: it reads and writes each parameter's value, two moments and number of steps, and reads its
    # sum.
    assert update == (tensors, 7 * weights + 2 * 4 * tensors)
    # Operators that write into planned memory take none of their own.
    assert allocations == 0
    # No weight is packed for an update: a training holds no second copy of it.
    assert "pack" not in text
