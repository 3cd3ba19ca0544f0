"""Memory of models on the meta device. Runs in its own process, because the heap of a long-running one has gaps that
are not resident, and a tensor may be placed in a different gap each time."""

import pathlib
import re

import abele
import poptorch
import pytest
import torch

pytestmark = pytest.mark.own_process


def test_a_capture_takes_no_memory_for_weights_and_gradients():
    """The capture needs only shapes: of 64 MiB per layer it keeps a few pages."""

    class Wide(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4096, 4096, bias=False) for _ in range(8))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x, poptorch.identity_loss(x.sum(), reduction="sum")

    with torch.device("meta"):
        model = Wide()
    executor = abele.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    with pytest.raises(abele.Error, match="is on the meta device"):
        executor(torch.zeros(1, 4096))
    peak = _status("VmHWM") - before
    assert peak < 3 * 64 << 10, f"{peak} KiB"  # two gradients at a time, instead of sixteen tensors


def _status(name):
    text = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", text)[1])
