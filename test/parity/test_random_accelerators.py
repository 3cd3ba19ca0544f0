"""Random networks, cuts, groups of devices, schedules, places of tensors and lists of devices on the simulated
accelerator, whose streams are held up at random: the bits of eager PyTorch on it, no missing wait, no deadlock.
ABELE_PROPERTY=first:count runs other seeds than the first four."""

import os
import random

import networks
import poptorch
import pytest
import torch
import torch.nn.functional as F
from against_eager import MICRO_BATCH, options
from networks import WIDTH
from on_accelerator import on_device, require_equals_eager
from support import simulated
from torch import nn

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.own_process]

FIRST, COUNT = map(int, os.environ.get("ABELE_PROPERTY", "0:4").split(":"))


class Skipping(networks.Network):
    """Parts that also read what any earlier one made, or an input, or the weight of an earlier one."""

    def __init__(self, draw, has_dropout, width):
        count = draw.randint(5, 8)
        super().__init__([nn.Linear(width, width, bias=draw.random() < 0.5) for _ in range(count)])
        self.width = width
        self.kinds = [draw.choice(["tanh", "relu_", "gelu", "norm", "view"]) for _ in range(count)]
        self.skips = [draw.randrange(i + 1) if draw.random() < 0.4 else None for i in range(count)]
        self.ties = [draw.randrange(i) if i and draw.random() < 0.25 else None for i in range(count)]
        self.dropout = [has_dropout and draw.random() < 0.3 for _ in range(count)]
        self.register_buffer("seen", torch.zeros(width))
        self.writes = draw.randrange(count) if draw.random() < 0.5 else None

    def batch(self, n):
        return torch.randn(n, self.width), torch.randint(4, (n,))

    def forward(self, x, target):
        made = [x]
        for i, part in enumerate(self.parts):
            x = part(x)
            if self.kinds[i] == "relu_":
                x = x.relu_()
            elif self.kinds[i] == "norm":
                x = F.layer_norm(x, (self.width,))
            elif self.kinds[i] == "view":
                left, right = x.chunk(2, 1)
                x = torch.cat([right.tanh(), left], 1)
            else:
                x = getattr(F, self.kinds[i])(x) if self.kinds[i] == "gelu" else torch.tanh(x)
            if self.dropout[i]:
                x = F.dropout(x, 0.2, self.training)
            if self.skips[i] is not None:
                x = x + made[self.skips[i]]
            if self.ties[i] is not None:
                x = x + F.linear(x, self.parts[self.ties[i]].weight)
            if self.writes == i:
                with torch.no_grad():
                    self.seen += x.mean(0)
            made.append(x)
        return x[:, :4], F.cross_entropy(x[:, :4], target)


def some_devices(draw, may_have_cpu):
    names = [f"simulated:{i}" for i in draw.sample(range(4), draw.randint(1, 4))]
    if draw.random() < 0.3:
        return "simulated"
    if may_have_cpu and draw.random() < 0.3:
        names.insert(draw.randrange(len(names) + 1), "cpu")
    return ",".join(names)


def some_off_chip(opts, draw):
    if draw.random() < 0.5:
        return
    for use in ("Weight", "Optimizer", "Accumulator", "Activation"):
        location = poptorch.TensorLocationSettings().useOnChipStorage(draw.random() < 0.4)
        getattr(opts.TensorLocations, f"set{use}Location")(location.minElementsForOffChip(draw.choice([0, 2, 40])))


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_a_random_training(seed):
    simulated.load()
    draw = random.Random(seed)
    has_dropout = draw.random() < 0.5
    torch.manual_seed(seed)
    group = draw.choice([1, 1, 2, 3])
    model = Skipping(draw, has_dropout, WIDTH if group == 1 else 4 * WIDTH)
    reference = on_device(model)
    num_stages = draw.randint(1, min(5, len(model.parts)))
    cuts = [0, *sorted(draw.sample(range(1, len(model.parts)), num_stages - 1))]
    for stage, part in enumerate(cuts):
        poptorch.BeginBlock(model.parts[part], ipu_id=stage)
    accumulation = draw.randint(2 * num_stages - 1, 2 * num_stages + 3)
    schedule = draw.choice(["1f1b", "gpipe", "zero-bubble", "sharded"])
    strategy = (
        poptorch.PipelinedExecution().schedule(schedule) if schedule != "sharded" else poptorch.ShardedExecution()
    )
    opts = options(lambda: strategy, accumulation)
    opts.tensorParallel(group).deviceType(some_devices(draw, may_have_cpu=group == 1 and not has_dropout))
    opts.deviceGraphs(True)
    make = draw.choice([lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.01)])
    some_off_chip(opts, draw)
    simulated.take_findings()
    simulated.set_delays(seed + 1)
    executor = poptorch.trainingModel(model, opts, make(model.parameters()))
    batches = [model.batch(MICRO_BATCH * accumulation) for _ in range(3)]
    ours = [executor(*batch) for batch in batches]
    executor.copyWeightsToHost()
    simulated.set_delays(0)
    require_equals_eager(model, ours, reference, make(reference.parameters()), batches, accumulation)
    executor.destroy()
    assert simulated.take_findings() == []
