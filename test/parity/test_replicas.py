"""Replicas give the bits that eager PyTorch gives when it sums the gradients of each replica, and then the replicas."""

import copy

import networks
import poptorch
import pytest
import replicated
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, SEED, cut, options, require_same

pytestmark = pytest.mark.usefixtures("one_thread")


STEPS = 3


def train(network, replicas, num_stages, optimizer, accumulation, iterations=1, strategy=None, **rules):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = copy.deepcopy(model)
    cut(model, num_stages)
    opts = options(strategy or poptorch.PipelinedExecution, accumulation, iterations)
    opts.replicationFactor(replicas)
    if network == "InPlace":
        opts.broadcastBuffers(False)  # it writes a buffer that holds no running statistics
    size, group = rules.get("size", 1), rules.get("group", replicated.consecutive)
    kind = {replicated.consecutive: "Consecutive", replicated.orthogonal: "Orthogonal"}[group]
    opts.inputReplicaGrouping(size, getattr(poptorch.CommGroupType, kind))
    if not rules.get("mean", True):
        opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    models = replicated.copies(reference, replicas)
    reference_optimizer = OPTIMIZERS[optimizer](reference.parameters())
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * accumulation * iterations * (replicas // size)) for _ in range(STEPS)]
    ours = [executor(*batch) for batch in batches]
    torch.manual_seed(SEED)
    for (output, loss), batch in zip(ours, batches, strict=True):
        expected = replicated.step(models, reference_optimizer, batch, MICRO_BATCH, accumulation, **rules)
        ordered = [result for results in zip(*expected, strict=True) for result in results]
        assert torch.equal(loss, torch.stack([loss for _, loss in ordered]))
        assert torch.equal(output, torch.cat([output for output, _ in ordered]))
    require_same(model.state_dict(), reference.state_dict())
    executor.destroy()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("replicas", [2, 3, 4])
@pytest.mark.parametrize("network", ["ResidualMlp", "ResNet", "Tied"])
def test_training_equals_eager(network, replicas, num_stages, optimizer):
    train(network, replicas, num_stages, optimizer, accumulation=2 * num_stages - 1)


@pytest.mark.parametrize("network", networks.NETWORKS)
def test_every_network_with_several_updates_a_call(network):
    train(network, 2, 2, "adamw", accumulation=3, iterations=2)


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zero-bubble", "zero-bubble-2"])
def test_every_schedule(schedule):
    train("Encoder", 2, 3, "adamw", 5, iterations=2, strategy=lambda: poptorch.PipelinedExecution().schedule(schedule))


def test_sharded():
    train("ResNet", 3, 3, "sgd", accumulation=2, iterations=2, strategy=poptorch.ShardedExecution)


@pytest.mark.parametrize("group", [replicated.consecutive, replicated.orthogonal])
@pytest.mark.parametrize("size", [2, 4])
def test_groups_of_replicas_that_take_the_same_inputs(size, group):
    train("ResidualMlp", 4, 2, "sgd", accumulation=3, iterations=2, size=size, group=group)


def test_the_sum_of_the_gradients():
    train("Gru", 3, 2, "sgd", accumulation=3, mean=False)


@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("network", ["ResidualMlp", "ResNet"])
def test_inference_equals_eager(network, replicas):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]().eval()
    batch = model.batch(MICRO_BATCH * 4 * replicas)
    with torch.no_grad():
        expected = [model(*(t[2 * k : 2 * k + 2] for t in batch)) for k in range(4 * replicas)]
    cut(model, 2)
    opts = options(poptorch.PipelinedExecution, 1, iterations=4).replicationFactor(replicas)
    output, loss = poptorch.inferenceModel(model, opts)(*batch)
    assert torch.equal(loss, torch.stack([loss for _, loss in expected]))
    assert torch.equal(output, torch.cat([output for output, _ in expected]))


def test_two_runs_give_the_same_bits_and_replicas_draw_different_numbers():
    class Drop(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.dropout(x)

    def run():
        opts = poptorch.Options().replicationFactor(4).deviceIterations(2).randomSeed(3)
        opts.inputReplicaGrouping(4, poptorch.CommGroupType.Consecutive)
        executor = poptorch.inferenceModel(Drop(), opts)
        return [executor(torch.ones(2, 64)) for _ in range(2)]

    first, second = run(), run()
    for a, b in zip(first, second, strict=True):
        assert a.shape == (8, 64) and torch.equal(a, b)
    rows = torch.cat(first)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)


def test_a_forward_that_writes_a_shared_parameter_is_refused():
    class Embed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(4, 2, max_norm=0.1)

        def forward(self, x):
            return poptorch.identity_loss(self.table(x).sum(), reduction="none")

    executor = poptorch.trainingModel(Embed(), poptorch.Options().replicationFactor(2))
    with pytest.raises(poptorch.Error, match="E0403 .*writes parameter table.weight"):
        executor(torch.tensor([[1, 2], [3, 0]]))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: poptorch.optim.AdamW(parameters, lr=0.01, max_grad_norm=0.1),
        lambda parameters: poptorch.optim.RMSprop(parameters, lr=0.01),
        lambda parameters: poptorch.optim.LAMB(parameters, lr=0.01),
    ],
)
def test_other_optimizers_see_the_sums_of_all_replicas(make):
    """Two replicas of one micro-batch do what one replica does with two."""

    def train(replicas, accumulation):
        torch.manual_seed(0)
        model = networks.NETWORKS["ResidualMlp"]().eval()
        cut(model, 3)
        opts = options(poptorch.PipelinedExecution, accumulation).replicationFactor(replicas)
        opts.enforcePipelineMinimum(False)
        executor = poptorch.trainingModel(model, opts, make(model.parameters()))
        torch.manual_seed(1)
        for _ in range(3):
            executor(*model.batch(2 * MICRO_BATCH))
        executor.destroy()
        return model.state_dict()

    require_same(train(2, 1), train(1, 2))
