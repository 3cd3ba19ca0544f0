"""The simulated accelerator in Python: a step of training has the bits of the CPU."""

import pytest
import torch
from support import simulated

pytestmark = pytest.mark.own_process  # torch's engine of backward must see the device before it starts


@pytest.fixture(autouse=True)
def _findings():
    simulated.load()
    simulated.take_findings()
    yield
    simulated.set_delays(0)
    assert simulated.take_findings() == []


def train(device):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3))
    batches = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(3)]
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
        optimizer.step()
    torch.set_num_threads(threads)
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("delays", [0, 5])
def test_training_has_the_bits_of_the_cpu(delays):
    simulated.set_delays(delays)
    for found, expected in zip(train("simulated:1"), train("cpu"), strict=True):
        assert torch.equal(found, expected)


def test_streams_and_events():
    stream = torch.Stream("simulated:0")
    x = torch.ones(100, device="simulated:0")
    event = torch.accelerator.current_stream(0).record_event()
    stream.wait_event(event)
    with stream:
        x.add_(1)
    torch.accelerator.current_stream(0).wait_stream(stream)
    assert x[7].item() == 2


def test_a_missing_wait_is_found():
    x = torch.ones(100, device="simulated:0")
    with torch.Stream("simulated:0"):
        x.add_(1)
    assert len(simulated.take_findings()) == 1
    torch.accelerator.synchronize(0)
