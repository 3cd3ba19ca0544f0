"""abele.offload: a module's tensors in a file stay the same tensors."""

import copy
import os
import re
from pathlib import Path

import abele
import poptorch
import torch


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(256, 256)
        self.norm = torch.nn.BatchNorm1d(256)
        self.head = torch.nn.Linear(256, 256, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x, target):
        with poptorch.Block("0"):
            y = self.norm(self.embedding(x))
        with poptorch.Block("1"):
            return torch.nn.functional.cross_entropy(self.head(y), target)


def resident(tensor):
    """Bytes of the tensor's mapping that are in memory, or None if the tensor is not in a mapping of a nameless
    file."""
    found = None
    for line in Path("/proc/self/smaps").read_text().splitlines():
        header = re.match(r"([0-9a-f]+)-([0-9a-f]+) .*", line)
        if header:
            begin, end = (int(address, 16) for address in header.groups())
            found = begin <= tensor.data_ptr() < end and line.endswith("(deleted)")
        elif found and line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    return None


def test_tensors_stay_what_they_are(tmp_path):
    model = Tied()
    reference = copy.deepcopy(model)
    parameters = list(model.parameters())
    row = model.embedding.weight.detach()[3]
    assert abele.offload(model, tmp_path) is model
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert model.head.weight is model.embedding.weight and resident(model.head.weight) == 0
    for (name, mine), theirs in zip(model.state_dict().items(), reference.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    with torch.no_grad():
        model.embedding.weight[3] = 5
    assert row.eq(5).all()  # a view is still one
    model.embedding.weight.sum().backward()
    assert model.embedding.weight.grad.eq(1).all()
    assert list(tmp_path.iterdir()) == []
    assert abele.offload(model) is model  # again: nothing to do
    assert row.eq(5).all()


def test_forked_processes_see_the_tensors(tmp_path):
    model = abele.offload(Tied(), tmp_path)
    row = model.head.weight.detach()[3]
    expected = row[:4].tolist()
    child = os.fork()
    if child == 0:  # small enough for one thread: those of OpenMP do not live on in a child
        os._exit(0 if row[:4].tolist() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_training_leaves_the_model_out_of_memory(tmp_path):
    def train(model):
        opts = poptorch.Options().setExecutionStrategy(poptorch.SerialPhasedExecution("0", "1"))
        opts.offChipMemoryLimit(0).offChipFolder(tmp_path)
        executor = poptorch.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.01))
        torch.manual_seed(1)
        x, target = torch.randint(256, (8,)), torch.randint(256, (8,))
        losses = [executor(x, target) for _ in range(3)]
        return executor, losses

    plain, offloaded = Tied(), abele.offload(Tied(), tmp_path)
    weight = offloaded.head.weight
    first, expected = train(plain)
    second, losses = train(offloaded)
    assert all(map(torch.equal, losses, expected))
    assert resident(weight) == 0
    second.copyWeightsToHost()
    assert resident(weight) == 0
    first.copyWeightsToHost()
    for (name, mine), theirs in zip(offloaded.state_dict().items(), plain.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs), name
    assert list(tmp_path.iterdir()) == []


def resident_mib():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) >> 10


class Wide(torch.nn.Module):
    """Keeps 24 activations of 16 MiB for backward. Notes how much of the process is in memory after them."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1024))
        self.resident_mib = []

    def forward(self, x):
        for block in ("0", "1"):
            with poptorch.Block(block):
                x = x * self.scale
                for _ in range(12):
                    x = x.sigmoid()
        self.resident_mib.append(resident_mib())
        with poptorch.Block("1"):
            return poptorch.identity_loss(x, reduction="mean")


def test_compiling_leaves_what_it_keeps_out_of_memory(tmp_path):
    def compiled(limit):
        model = Wide()
        opts = poptorch.Options().setExecutionStrategy(poptorch.SerialPhasedExecution("0", "1"))
        opts.offChipFolder(tmp_path)
        if limit is not None:
            opts.offChipMemoryLimit(limit)
        executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
        before = resident_mib()
        executor.compile(torch.ones(4096, 1024))
        return executor, model.resident_mib[0] - before

    limited, kept_mib = compiled(0)
    assert kept_mib < 200
    assert list(tmp_path.iterdir()) == []
    plain, all_mib = compiled(None)
    assert all_mib > 300
    x = torch.randn(4096, 1024)
    assert torch.equal(limited(x), plain(x))
