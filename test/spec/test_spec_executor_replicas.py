"""spec executor.md sections 3, 4 and 9, options.md section 9.6: several replicas of a model in one process."""

import copy
import itertools

import poptorch
import pytest
import torch

Group, Retrieval, Mode = poptorch.CommGroupType, poptorch.VariableRetrievalMode, poptorch.OutputMode


def options(replicas, iterations=1, accumulation=1, **settings):
    opts = poptorch.Options().replicationFactor(replicas).deviceIterations(iterations).autoRoundNumIPUs()
    opts.Training.gradientAccumulation(accumulation)
    if "mode" in settings:
        opts.outputMode(settings["mode"], settings.get("period", 1))
    if "group" in settings:
        opts.inputReplicaGrouping(*settings["group"])
    return opts


class Sums(torch.nn.Module):
    """A loss, a scalar and rows of every micro-batch. The gradient of w is the sum of x."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return poptorch.identity_loss(self.w * x.sum(), reduction="none"), x.sum(), x * 10


def positions(mode, period, count, replicas):
    """(micro-batch, replica) of what a call returns, in order; Sum: of what it adds up."""
    steps = {Mode.Final: [count - 1], Mode.EveryN: range(period - 1, count, period)}.get(mode, range(count))
    return list(itertools.product(steps, range(replicas)))


@pytest.mark.spec("executor/3/All", "executor/3/EveryN", "executor/3/Final", "executor/3/Sum", "executor/4")
@pytest.mark.parametrize("mode", [Mode.All, Mode.EveryN, Mode.Final, Mode.Sum])
@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("iterations", [1, 2])
def test_shapes_and_order_of_results(iterations, accumulation, replicas, mode):
    count = iterations * accumulation
    period = 2 if mode == Mode.EveryN and count % 2 == 0 else 1
    opts = options(replicas, iterations, accumulation, mode=mode, period=period)
    net = Sums()
    model = poptorch.trainingModel(net, opts, poptorch.optim.SGD(net.parameters(), lr=0.5))
    x = torch.arange(2 * count * replicas * 3, dtype=torch.float32).reshape(-1, 3)
    parts = x.reshape(count, replicas, 2, 3)
    _, scalar, rows = model(x)
    chosen = positions(mode, period, count, replicas)
    if mode == Mode.Sum:
        expected_rows = torch.cat([(parts[:, r] * 10).sum(0) for r in range(replicas)])
        expected = torch.stack([parts[:, r].sum() for r in range(replicas)])
    else:
        expected_rows = torch.cat([parts[k, r] * 10 for k, r in chosen])
        expected = torch.stack([parts[k, r].sum() for k, r in chosen])
    assert torch.equal(rows, expected_rows)
    assert torch.equal(scalar, expected if len(expected) > 1 else expected[0])
    multiplier = {Mode.All: count * replicas, Mode.EveryN: count * replicas // period}.get(mode, replicas)
    assert rows.shape == (2 * multiplier, 3) and scalar.shape == ((multiplier,) if multiplier > 1 else ())


@pytest.mark.spec("options/2/inputReplicaGrouping", names=["Options.inputReplicaGrouping"])
@pytest.mark.parametrize("kind, part_of", [(Group.Consecutive, [0, 0, 1, 1]), (Group.Orthogonal, [0, 1, 0, 1])])
def test_replicas_of_a_group_take_the_same_inputs(kind, part_of):
    model = poptorch.inferenceModel(torch.nn.Identity(), options(4, iterations=3, group=(2, kind)))
    x = torch.arange(12.0).reshape(6, 2)
    expected = [x[2 * d + part_of[r]] for d in range(3) for r in range(4)]
    assert torch.equal(model(x), torch.stack(expected))
    with pytest.raises(AssertionError, match="input group size"):
        poptorch.inferenceModel(torch.nn.Identity(), options(4, iterations=3, group=(2, kind)))(x[:5])


@pytest.mark.spec("options/2/replicationFactor", "executor/4", names=["Options.replicationFactor"])
@pytest.mark.parametrize("reduction", [poptorch.ReductionType.Mean, poptorch.ReductionType.Sum])
def test_gradients_are_reduced_over_accumulation_and_replicas(reduction):
    opts = options(4, iterations=2, accumulation=2)
    opts.Training.accumulationAndReplicationReductionType(reduction)
    net = Sums()
    model = poptorch.trainingModel(net, opts, torch.optim.SGD(net.parameters(), lr=1.0))
    x = torch.arange(16.0)
    model(x)
    expected = -x.sum() / (8 if reduction == poptorch.ReductionType.Mean else 1)
    assert torch.equal(net.w.detach(), expected)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return self.total.clone()


@pytest.mark.spec("options/2/broadcastBuffers", "executor/6/inference_modifying_buffers")
def test_each_replica_owns_the_buffers_that_it_writes():
    x = torch.arange(12.0).reshape(6, 2)
    with pytest.raises(poptorch.Error, match="broadcastBuffers"):
        poptorch.inferenceModel(Counter(), options(2, iterations=3))(x)
    net = Counter()
    model = poptorch.inferenceModel(net, options(2, iterations=3).broadcastBuffers(False))
    for call in (1, 2):
        result = model(x).reshape(3, 2, 2)
        for r in range(2):
            assert torch.equal(result[-1, r], call * x.reshape(3, 2, 2)[:, r].sum(0))
    model.copyWeightsToHost()
    assert torch.equal(model.total, 2 * x.reshape(3, 2, 2)[:, 0].sum(0))
    # Replicas that take the same inputs write the same.
    model = poptorch.inferenceModel(Counter(), options(2, iterations=3, group=(2, Group.Consecutive)))
    assert torch.equal(model(x[:3]).reshape(3, 2, 2)[-1], x[:3].sum(0).expand(2, 2))


class Normed(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.norm = norm
        self.head = torch.nn.Conv1d(3, 2, 1)

    def forward(self, x):
        return poptorch.identity_loss(self.head(self.norm(x)).pow(2), reduction="mean")


@pytest.mark.spec("options/2/broadcastBuffers")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.BatchNorm1d(3),
        lambda: torch.nn.BatchNorm1d(3, momentum=None),
        lambda: torch.nn.InstanceNorm1d(3, affine=True, track_running_stats=True),
    ],
)
def test_each_replica_keeps_running_statistics_of_its_own_by_default(make, training):
    torch.manual_seed(0)
    net = Normed(make())
    replicas = [copy.deepcopy(net) for _ in range(2)]
    opts = options(2, iterations=3)
    if training:
        model = poptorch.trainingModel(net, opts, torch.optim.SGD(net.parameters(), lr=0.0))
    else:
        model = poptorch.inferenceModel(net, opts)
    for call in range(2):
        x = torch.randn(6 * 4, 3, 5) * (call + 1)
        model(x)
        with torch.no_grad():
            for k, part in enumerate(x.split(4)):
                replicas[k % 2](part)
    model.copyWeightsToHost()
    first, other = replicas[0].norm, replicas[1].norm
    assert not torch.equal(first.running_mean, other.running_mean)
    for name, value in first.named_buffers():
        assert torch.equal(getattr(net.norm, name), value), name
    assert net.norm.num_batches_tracked == first.num_batches_tracked


class NormAndCounter(torch.nn.Module):
    """A counter beside the statistics is no statistic, wherever it lies."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.norm.register_buffer("rows_seen", torch.zeros(()))

    def forward(self, x):
        self.norm.rows_seen += x.sum()
        return self.norm(x)


@pytest.mark.spec("options/2/broadcastBuffers")
def test_other_buffers_are_still_shared_by_default():
    with pytest.raises(poptorch.Error, match="E0702 .*buffer norm.rows_seen"):
        poptorch.inferenceModel(NormAndCounter(), options(2))(torch.randn(8, 3))


@pytest.mark.spec("options/9.6", names=["Options.autoRoundNumIPUs"])
@pytest.mark.parametrize("replicas, message", [(3, "power of two"), (65, "at most 64")])
def test_numbers_of_devices_count_all_replicas(replicas, message):
    opts = poptorch.Options().replicationFactor(replicas)
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(torch.nn.ReLU(), opts)(torch.ones(replicas, 1))
    if replicas < 64:
        assert poptorch.inferenceModel(torch.nn.ReLU(), opts.clone().autoRoundNumIPUs())(torch.ones(3, 1)).shape == (
            3,
            1,
        )


class Scale(torch.nn.Module):
    """Loss: the sum of w * x, so that the gradient of w is x. Returns w as each replica has it."""

    def __init__(self, values):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor(values))
        self.shared = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        loss = poptorch.identity_loss((self.w * x[0] + self.shared * x[0]).sum(), reduction="none")
        return self.w.clone(), loss


GROUPS = [
    (Group.NoGrouping, 1, [[0], [1], [2], [3]]),
    (Group.Consecutive, 2, [[0, 1], [2, 3]]),
    (Group.Orthogonal, 2, [[0, 2], [1, 3]]),
    (Group.Consecutive, 4, [[0, 1, 2, 3]]),
]


@pytest.mark.spec("executor/9", names=["PoplarExecutor.replicaGrouping"])
@pytest.mark.parametrize("mode", [Retrieval.OnePerGroup, Retrieval.AllReplicas])
@pytest.mark.parametrize("kind, shards, groups", GROUPS)
@pytest.mark.parametrize("reduction", [poptorch.ReductionType.Mean, poptorch.ReductionType.Sum])
def test_groups_of_replicas_have_weights_of_their_own(kind, shards, groups, mode, reduction):
    start = [[10.0 * (g + 1), 20.0 * (g + 1)] for g in range(len(groups))]
    group_of = {r: g for g, members in enumerate(groups) for r in members}
    rows = [group_of[r] for r in range(4)] if mode == Retrieval.AllReplicas else range(len(groups))
    net = Scale([start[g] for g in rows])
    opts = options(4, iterations=2, accumulation=2, mode=Mode.All)
    opts.Training.accumulationAndReplicationReductionType(reduction)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
    model = poptorch.trainingModel(net, opts, optimizer)
    model.w.replicaGrouping(kind, shards, mode)
    x = torch.arange(32.0).reshape(16, 2)
    values = torch.tensor(start)
    shared, velocity, shared_velocity = torch.ones(2), torch.zeros(len(groups), 2), torch.zeros(2)
    for _ in range(2):
        seen = model(x)[0].reshape(2, 2, 4, 2)
        for d, parts in enumerate(x.reshape(2, 2, 4, 2)):
            for a, r in itertools.product(range(2), range(4)):
                assert torch.equal(seen[d, a, r], values[group_of[r]])
            scale = 1 / 8 if reduction == poptorch.ReductionType.Mean else 1
            gradient = torch.stack([parts[:, members].sum((0, 1)) for members in groups]) * scale
            velocity = velocity * 0.5 + gradient
            values = values - 0.5 * velocity
            shared_velocity = shared_velocity * 0.5 + parts.sum((0, 1)) * scale
            shared = shared - 0.5 * shared_velocity
    assert torch.equal(net.w.detach(), torch.stack([values[g] for g in rows]))
    assert torch.equal(net.shared.detach(), shared)
    state = model._executable.session.optimizerState()
    assert torch.equal(state["momentum_buffer/w"], torch.stack([velocity[g] for g in rows]))
    model._executable.session.setOptimizerState(state)
    # From the host to every group.
    with torch.no_grad():
        net.w.copy_(torch.stack([torch.tensor(start[g]) for g in rows]))
    model.copyWeightsToDevice()
    first = model(x)[0].reshape(2, 2, 4, 2)[0, 0]
    assert torch.equal(first, torch.tensor([start[group_of[r]] for r in range(4)]))


@pytest.mark.spec("executor/9", names=["PoplarExecutor.replicaGrouping"])
def test_grouping_of_an_inference_model_is_its_own():
    net = Scale([[1.0, 2.0], [3.0, 4.0]])
    grouped = poptorch.inferenceModel(net, options(2))
    assert torch.equal(grouped.w, net.w) and isinstance(grouped.w, torch.nn.Parameter) and grouped.w.shape == (2, 2)
    grouped.w.replicaGrouping(Group.NoGrouping, 0, Retrieval.OnePerGroup)
    assert torch.equal(grouped(torch.ones(2, 2))[0], torch.tensor([1.0, 2.0, 3.0, 4.0]))
    whole = poptorch.inferenceModel(net, options(1))
    assert whole(torch.ones(1, 2))[0].shape == (2, 2)
    everywhere = poptorch.inferenceModel(net, options(2))
    everywhere.w.replicaGrouping(Group.All, 2, Retrieval.OnePerGroup)
    assert everywhere(torch.ones(2, 2))[0].shape == (4, 2)
    assert net.w.shape == (2, 2)


@pytest.mark.spec("executor/9", names=["PoplarExecutor.replicaGrouping"])
def test_groupings_that_do_not_fit_are_refused():
    def wrap(values=((1.0, 2.0), (3.0, 4.0))):
        return poptorch.inferenceModel(Scale([list(v) for v in values]), options(2))

    model = wrap()
    with pytest.raises(AssertionError):
        model.w.replicaGrouping("consecutive", 1, Retrieval.OnePerGroup)
    model.w.replicaGrouping(Group.Consecutive, 2, Retrieval.OnePerGroup)
    with pytest.raises(poptorch.Error, match="needs 1 values"):
        model(torch.ones(2, 2))
    assert model.model.w.shape == (2, 2)
    model = wrap()
    model(torch.ones(2, 2))
    with pytest.raises(poptorch.Error, match="before the model is compiled"):
        model.w.replicaGrouping(Group.NoGrouping, 1, Retrieval.OnePerGroup)
    scalar = poptorch.trainingModel(Sums(), options(2))
    with pytest.raises(poptorch.Error, match="scalar"):
        scalar.w.replicaGrouping(Group.NoGrouping, 1, Retrieval.OnePerGroup)
    nested = poptorch.trainingModel(torch.nn.Sequential(torch.nn.Linear(1, 1)), options(2))
    with pytest.raises(poptorch.Error, match="attributes of the wrapped module itself"):
        nested.model[0].weight.replicaGrouping(Group.NoGrouping, 1, Retrieval.OnePerGroup)
    nested.destroy()


@pytest.mark.spec("executor/8/getPerfCounters")
@pytest.mark.parametrize("mode, outputs", [(Mode.All, 6), (Mode.Final, 2), (Mode.Sum, 2), (Mode.EveryN, 2)])
def test_times_of_every_replica(mode, outputs):
    model = poptorch.inferenceModel(torch.nn.ReLU(), options(2, iterations=3, mode=mode, period=3))
    model(torch.ones(6, 1))
    counters = model.getPerfCounters()
    assert [len(times) for times in counters["input"]] == [6] and [len(t) for t in counters["output"]] == [outputs]


@pytest.mark.spec("executor/7.1")
def test_a_saved_program_of_replicas_goes_on(tmp_path):
    def make():
        torch.manual_seed(2)
        net = Scale([[1.0, 2.0], [3.0, 4.0]])
        model = poptorch.trainingModel(net, options(2), torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5))
        model.w.replicaGrouping(Group.NoGrouping, 1, Retrieval.OnePerGroup)
        return net, model

    x = torch.arange(4.0).reshape(2, 2)
    net, model = make()
    model(x)
    model.save(str(tmp_path / "model.poptorch"))
    model(x)
    expected = net.w.detach().clone()
    again = poptorch.load(str(tmp_path / "model.poptorch"))
    again(x)
    assert torch.equal(again.model.w.detach(), expected)
