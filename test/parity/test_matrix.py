"""Strategies x networks x stages x recomputation x optimizers x replicas x memory spaces: the bits of eager PyTorch.

By default a part in which every three settings meet; `pytest test/parity/test_matrix.py --matrix=full` runs all.
"""

import functools
import itertools

import networks
import poptorch
import pytest
import replicated
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, SEED, eager, options, require_same
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


STEPS = 2
PIPELINES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-2")
STRATEGIES = (*PIPELINES, "sharded", "serial-phased", "parallel-phased")


class Transformer(networks.Encoder):
    """Seven parts: a stage each at most. Dropout."""

    def __init__(self):
        layers = [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(5)]
        networks.Sequence.__init__(self, [nn.Embedding(11, 16), *layers, nn.Linear(16, 11)])


class ResNet(networks.ResNet):
    """BatchNorm: running statistics in the order of the micro-batches."""

    def __init__(self):
        stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
        networks.Network.__init__(self, [stem, *(networks.ResidualConv() for _ in range(5)), head])


class Lstm(networks.Sequence):
    def __init__(self):
        layers = [networks.First(nn.LSTM(16, 16, batch_first=True)) for _ in range(5)]
        super().__init__([nn.Embedding(11, 16), *layers, nn.Linear(16, 11)])


NETWORKS = {network.__name__: network for network in (Transformer, ResNet, Lstm)}
AXES = {
    "strategy": STRATEGIES,
    "network": tuple(NETWORKS),
    "num_stages": (1, 2, 4, 7),
    "recompute": (False, True),
    "optimizer": tuple(OPTIMIZERS),
    "replicas": (1, 2),
    "separate_memory": (False, True),
}


def every_triple(axes):
    """Few combinations in which every three values of different axes meet: greedy, always the same ones."""
    rows = list(itertools.product(*axes))
    triples = [set(itertools.combinations(enumerate(row), 3)) for row in rows]
    missing, chosen = set().union(*triples), []
    while missing:
        best = max(range(len(rows)), key=lambda i: len(triples[i] & missing))
        missing -= triples[best]
        chosen.append(rows[best])
    return chosen


def pytest_generate_tests(metafunc):
    if "num_stages" not in metafunc.fixturenames:
        return
    full = metafunc.config.getoption("--matrix") == "full"
    metafunc.parametrize(list(AXES), list(itertools.product(*AXES.values())) if full else every_triple(AXES.values()))


def make_strategy(name, num_stages, recompute):
    """Blocks "0", "1", ... are the stages; a phase each where there are phases."""
    blocks = [str(stage) for stage in range(num_stages)]
    if name == "sharded":
        return poptorch.ShardedExecution(*blocks)
    if name == "serial-phased":
        return poptorch.SerialPhasedExecution(*blocks)
    if name == "parallel-phased":
        return poptorch.ParallelPhasedExecution(*blocks)
    num_devices = max(1, num_stages // 2) if name == "interleaved" else num_stages
    stages = [poptorch.Stage(block).ipu(int(block) % num_devices) for block in blocks]
    return poptorch.PipelinedExecution(*stages).schedule(name).recompute(recompute)


def make_model(network):
    torch.manual_seed(0)
    return NETWORKS[network]()


def make_batches(model, rows):
    torch.manual_seed(1)
    return [model.batch(rows) for _ in range(STEPS)]


@functools.cache
def expected(network, optimizer, accumulation, replicas):
    """Outputs and losses of each step, and the state after the last, in plain PyTorch. Replicas: see replicated.py."""
    model = make_model(network)
    batches = make_batches(model, MICRO_BATCH * accumulation * replicas)
    theirs = OPTIMIZERS[optimizer](model.parameters())
    models = replicated.copies(model, replicas)
    torch.manual_seed(SEED)
    steps = []
    for batch in batches:
        if replicas == 1:
            steps.append(eager(model, theirs, batch, accumulation))
            continue
        results = replicated.step(models, theirs, batch, MICRO_BATCH, accumulation)
        ordered = [result for of_replicas in zip(*results, strict=True) for result in of_replicas]
        steps.append((torch.cat([output for output, _ in ordered]), torch.stack([loss for _, loss in ordered])))
    return steps, model.state_dict()


def test_equals_eager(strategy, network, num_stages, recompute, optimizer, replicas, separate_memory, configuration):
    accumulation = 2 * num_stages - 1
    model = make_model(network)
    for stage in range(num_stages):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // num_stages], str(stage))
    opts = options(lambda: make_strategy(strategy, num_stages, recompute), accumulation)
    opts.replicationFactor(replicas).broadcastBuffers(False)
    if recompute:
        opts._Popart.set("autoRecomputation", 3)
    if separate_memory:
        opts.separateMemory(True)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    ours = [executor(*batch) for batch in make_batches(model, MICRO_BATCH * accumulation * replicas)]
    steps, state = expected(network, optimizer, accumulation, replicas)
    for (output, loss), (expected_output, expected_loss) in zip(ours, steps, strict=True):
        assert torch.equal(loss.reshape(-1), expected_loss) and torch.equal(output, expected_output)
    require_same(model.state_dict(), state)
    text = executor._executable.session.planText()
    assert text.startswith(f"plan {strategy if strategy in PIPELINES else 'sharded'} ")
    is_separate = separate_memory or configuration == "separate-memory"
    assert ("  receive " in text) == (is_separate and text.count(" device=") > 1)
    executor.destroy()


@pytest.mark.parametrize("network", NETWORKS)
def test_the_order_of_the_sums_is_all_that_replicas_change(network):
    """Micro-batches dealt to one, two or three replicas: the same sums but for the order of addition."""

    def train(replicas):
        model = make_model(network).eval()  # no random numbers, no running statistics
        batches = make_batches(model, MICRO_BATCH * 6)
        opts = options(poptorch.PipelinedExecution, 6 // replicas).replicationFactor(replicas)
        executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
        for batch in batches:
            executor(*batch)
        executor.destroy()
        return model.state_dict()

    alone = train(1)
    for replicas in (2, 3):
        for name, value in train(replicas).items():
            # Six gradients added up in another order.
            torch.testing.assert_close(value, alone[name], rtol=1e-5, atol=1e-6, msg=name)
