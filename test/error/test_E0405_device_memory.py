"""E0405: a plan that needs more bytes than a device has. What the message proposes works."""

import re

import poptorch
import pytest
import torch
from torch import nn

ROWS, ACCUMULATION = 8, 5


class Net(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        layers = [nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(6)]
        self.first = poptorch.BeginBlock(nn.Sequential(*layers[:2]), "first", ipu_id=0)
        self.second = poptorch.BeginBlock(nn.Sequential(*layers[2:4]), "second", ipu_id=0)
        self.third = poptorch.BeginBlock(nn.Sequential(*layers[4:]), "third", ipu_id=1)

    def forward(self, x):
        y = self.third(self.second(self.first(x)))
        return y, poptorch.identity_loss(y.square(), "mean")


def two_devices():
    return poptorch.PipelinedExecution(poptorch.Stage("first", "second"), "third").schedule("1f1b")


def compiled(limit, change=lambda opts: None, rows=ROWS, strategy=two_devices):
    torch.manual_seed(0)
    net = Net()
    opts = poptorch.Options().setExecutionStrategy(strategy())
    opts.Training.gradientAccumulation(ACCUMULATION)
    if limit is not None:
        opts.deviceMemoryLimit(limit)
    change(opts)
    executor = poptorch.trainingModel(net, opts, torch.optim.AdamW(net.parameters()))
    return executor, torch.randn(ACCUMULATION * rows, 64, generator=torch.Generator().manual_seed(1))


def peak(**options):
    executor, x = compiled(None, **options)
    executor(x)
    bytes_ = max(stage["peak_bytes"] for stage in executor.report()["stages"])
    executor.destroy()
    return bytes_


def refused(limit, **options):
    """The text of the error; model and executor stay usable."""
    executor, x = compiled(limit, **options)
    before = {name: value.clone() for name, value in executor.state_dict().items()}
    with pytest.raises(poptorch.Error, match="E0405 device-memory: out of memory on device") as raised:
        executor(x)
    assert not isinstance(raised.value, (poptorch.RecoverableError, poptorch.UnrecoverableError))
    assert not executor.isCompiled()
    assert all(torch.equal(value, before[name]) for name, value in executor.state_dict().items())
    executor.destroy()
    return str(raised.value)


def test_error():
    needed = peak()
    text = refused(needed - 1)
    assert f"needs {needed} bytes, {needed - 1} are available" in text
    found = text[text.index("  found") : text.index("  expected")]
    assert "weights" in found and "optimizer state" in found and "stash" in found
    assert len(re.findall(r"\d+ bytes$", found, re.M)) == 5  # tensors
    assert "test_E0405_device_memory.py:" in found
    executor, x = compiled(needed)
    executor(x)
    executor.destroy()


def one_device():
    """Three stages on one device, whose updates run one after the other."""
    return poptorch.PipelinedExecution(*(poptorch.Stage(block).ipu(0) for block in ("first", "second", "third")))


def move_state(opts):
    opts.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))


PHASES = r'SerialPhasedExecution\(Stage\("first", "second"\), "third"\)'
# What is refused, what the message proposes, and that.
REMEDIES = {
    "recompute": ({}, r'recompute\("fit"\)', {"strategy": lambda: two_devices().recompute("fit")}),
    "schedule": ({"strategy": lambda: two_devices().schedule("gpipe")}, r'schedule\("1f1b"\)', {}),
    "off_chip": (
        {"strategy": one_device},
        r"TensorLocations\.setOptimizerLocation\(off\) with",
        {"change": move_state, "strategy": one_device},
    ),
    "phases": (
        {},
        PHASES,
        {"strategy": lambda: poptorch.SerialPhasedExecution(poptorch.Stage("first", "second"), "third")},
    ),
    "micro_batch": ({}, r"gradientAccumulation\((\d+)\)", {}),
}


@pytest.mark.parametrize("name", REMEDIES)
def test_remedies_work(name):
    refused_with, pattern, options = REMEDIES[name]
    limit = peak(**refused_with) - 2048
    text = refused(limit, **refused_with)
    line = next(line for line in text.splitlines() if ": fits, " in line and re.search(pattern, line))
    spare = int(re.search(r"fits, (\d+) bytes to spare", line)[1])
    if name == "micro_batch":
        accumulation = int(re.search(pattern, line)[1])
        options = {"change": lambda opts: opts.Training.gradientAccumulation(accumulation)}
    executor, x = compiled(limit, **options)
    executor(x)
    stages = executor.report()["stages"]
    executor.destroy()
    assert limit - max(stage["peak_bytes"] for stage in stages) == spare


def test_a_remedy_that_does_not_fit_says_so():
    text = refused(4096)
    assert ": does not fit, " in text and ": fits, " not in text
    assert re.search(r"or \d+ bytes a device", text)


def test_limits_by_device():
    executor, x = compiled(None)
    executor(x)
    bytes_ = [stage["peak_bytes"] for stage in executor.report()["stages"]]
    executor.destroy()
    assert "out of memory on device 1" in refused({"IPU0": 1 << 30, "IPU1": bytes_[1] - 1})
    executor, x = compiled({"IPU1": bytes_[1]})
    executor(x)
    executor.destroy()


def test_option():
    opts = poptorch.Options()
    assert opts.deviceMemoryLimit(1 << 20) is opts and opts.device_memory_limit == 1 << 20
    assert opts.deviceMemoryLimit({"IPU2": 5}).device_memory_limit == {2: 5}
    for wrong in ("1", 2.5, {"2": 5}, {"IPU2": None}):
        with pytest.raises(AssertionError):
            opts.deviceMemoryLimit(wrong)
    with pytest.raises(poptorch.Error, match="E0702"):
        opts.deviceMemoryLimit(-1)
