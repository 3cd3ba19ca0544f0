"""What tests on the simulated accelerator share: its judgement of waits, and eager PyTorch on it."""

import copy

import replicated
import torch
from against_eager import MICRO_BATCH, SEED, eager, require_same
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


def require_equals_eager(model, ours, reference, optimizer, batches, accumulation, replicas=1):
    """The results of our steps, and the weights that they left in the model, are those of eager steps of the reference,
    where that lives."""
    simulated.seed(SEED)
    device = next(reference.parameters()).device
    models = replicated.copies(reference, replicas) if replicas > 1 else []
    for (output, loss), batch in zip(ours, batches, strict=True):
        on_it = [tensor.to(device) for tensor in batch]
        if replicas == 1:
            expected, expected_loss = eager(reference, optimizer, on_it, accumulation)
        else:
            results = replicated.step(models, optimizer, on_it, MICRO_BATCH, accumulation)
            outputs, losses = zip(
                *(one for of_replicas in zip(*results, strict=True) for one in of_replicas), strict=True
            )
            expected, expected_loss = torch.cat(outputs), torch.stack(losses)
        assert torch.equal(loss.reshape(-1), expected_loss.cpu()) and torch.equal(output, expected.cpu())
    require_same(model.state_dict(), {name: value.cpu() for name, value in reference.state_dict().items()})
