"""What tests on the simulated accelerator share: its judgement of waits, and eager PyTorch on it."""

import copy

import torch
from against_eager import SEED, eager, require_same
from support import simulated


def judged(delays):
    """For the body of a fixture: streams are held up at random, and a missing wait between them fails the test."""
    simulated.load()
    simulated.take_findings()
    simulated.set_delays(delays)
    yield
    simulated.set_delays(0)
    for device in range(torch.accelerator.device_count()):
        torch.accelerator.synchronize(device)
    assert simulated.take_findings() == []


def on_device(model, device="simulated:0"):
    """A copy there; tied parameters stay one, which Module.to() forgets for devices out of torch's tree."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return copy.deepcopy(model).to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def require_equals_eager(model, ours, reference, optimizer, batches, accumulation):
    """The results of our steps, and the weights that they left in the model, are those of eager steps of the reference,
    where that lives."""
    simulated.seed(SEED)
    device = next(reference.parameters()).device
    for (output, loss), batch in zip(ours, batches, strict=True):
        expected, expected_loss = eager(reference, optimizer, [t.to(device) for t in batch], accumulation)
        assert torch.equal(loss.reshape(-1), expected_loss.cpu()) and torch.equal(output, expected.cpu())
    require_same(model.state_dict(), {name: value.cpu() for name, value in reference.state_dict().items()})
