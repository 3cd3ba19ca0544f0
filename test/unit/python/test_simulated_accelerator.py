"""The simulated accelerator in Python: a step of training has the bits of the CPU."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from support import simulated

ROOT = Path(__file__).resolve().parents[3]

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


def test_links_between_devices_are_timed(capsys, monkeypatch):
    """scripts/device_links.py, whose figures are parts of the check of a device."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    device_links = importlib.import_module("device_links")
    monkeypatch.setattr(device_links, "LARGE", 1 << 16)
    monkeypatch.setattr("sys.argv", ["", "simulated"])
    device_links.main()
    links = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert list(links) == ["host to 0", "0 to host", "0 to 1", "1 to 0"]
    assert all(figures["small_us"] > 0 and figures["gbytes_per_s"] > 0 for figures in links.values())
