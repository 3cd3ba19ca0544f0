"""Weights and optimizer state dealt to the replicas (replicated tensor sharding) change where bytes lie, and no bit."""

import functools

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, cut, options, require_same

pytestmark = pytest.mark.usefixtures("one_thread")


SPEC = pytest.mark.spec(
    "options/6/keys",
    names=[
        "TensorLocationSettings.useReplicatedTensorSharding",
        "TensorLocationSettings.minElementsForReplicatedTensorSharding",
    ],
)
STEPS, ACCUMULATION, STAGES = 3, 5, 3
ALL_OPTIMIZERS = OPTIMIZERS | {
    "sgd-plain": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd-clipped": lambda p: poptorch.optim.SGD(p, lr=0.05, momentum=0.9, max_grad_norm=0.05),
    "adam": lambda p: poptorch.optim.Adam(p, lr=0.01),
    "adamw-clipped": lambda p: poptorch.optim.AdamW(p, lr=0.01, max_grad_norm=0.05),
    "adamw-scaled": lambda p: poptorch.optim.AdamW(p, lr=0.01, loss_scaling=1024.0),
    "rmsprop": lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rmsprop-tf": lambda p: poptorch.optim.RMSprop(p, lr=0.01, use_tf_variant=True),
    "lamb": lambda p: poptorch.optim.LAMB(p, lr=0.01),
}


def deal(opts, weights=False, state=True, least=1):
    """Asks for sharding; least: elements of the smallest tensor that is sharded, None for the default."""
    for use, setter in ((weights, "setWeightLocation"), (state, "setOptimizerLocation")):
        settings = poptorch.TensorLocationSettings().useReplicatedTensorSharding(use)
        if least is not None:
            settings.minElementsForReplicatedTensorSharding(least)
        getattr(opts.TensorLocations, setter)(settings)


def train(network, optimizer, replicas, configure, iterations=1, strategy=poptorch.PipelinedExecution, half=False):
    """Losses of all steps, weights, optimizer state and the report after the last."""
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    if half:
        model.half()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    cut(model, STAGES)
    opts = options(strategy, ACCUMULATION, iterations).replicationFactor(replicas).broadcastBuffers(False)
    if half:
        opts.Precision.enableStochasticRounding(True)
    configure(opts)
    theirs = ALL_OPTIMIZERS[optimizer](model.parameters())
    executor = poptorch.trainingModel(model, opts, theirs)
    losses = []
    for _ in range(STEPS):
        x, target = model.batch(MICRO_BATCH * ACCUMULATION * iterations * replicas)
        losses.append(executor(x.half() if half else x, target)[1])
    state = executor._executable.session.optimizerState()
    report = executor.report()
    executor.destroy()
    assert len(names) == len(list(model.parameters()))
    return torch.cat(losses), model.state_dict(), state, report


@functools.cache
def whole(network, optimizer, replicas, iterations=1, half=False):
    return train(network, optimizer, replicas, lambda opts: None, iterations, half=half)


def require_equal(dealt, undealt):
    assert torch.equal(dealt[0], undealt[0])
    require_same(dealt[1], undealt[1])
    assert list(dealt[2]) == list(undealt[2])
    require_same(dealt[2], undealt[2])


@SPEC
@pytest.mark.parametrize("weights, state", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("optimizer", ALL_OPTIMIZERS)
def test_the_same_bits(optimizer, replicas, weights, state):
    dealt = train("ResidualMlp", optimizer, replicas, lambda opts: deal(opts, weights, state))
    require_equal(dealt, whole("ResidualMlp", optimizer, replicas))


@pytest.mark.parametrize("network", ["Encoder", "ResNet", "Tied", "InPlace"])
def test_every_kind_of_network_with_several_updates_a_call(network):
    dealt = train(network, "adamw-clipped", 4, lambda opts: deal(opts, weights=True), iterations=2)
    require_equal(dealt, whole(network, "adamw-clipped", 4, iterations=2))


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zero-bubble", "sharded"])
def test_every_schedule(schedule):
    strategy = poptorch.ShardedExecution
    if schedule != "sharded":
        strategy = lambda: poptorch.PipelinedExecution().schedule(schedule)  # noqa: E731
    dealt = train("ResidualMlp", "adamw", 3, lambda opts: deal(opts, weights=True), strategy=strategy)
    require_equal(dealt, whole("ResidualMlp", "adamw", 3))


def test_stochastic_rounding_draws_the_same_numbers():
    dealt = train("ResidualMlp", "sgd", 3, lambda opts: deal(opts, weights=True), half=True)
    require_equal(dealt, whole("ResidualMlp", "sgd", 3, half=True))


def bytes_of_replicas(report):
    """By replica, of all its devices."""
    sums = {}
    for stage in report["stages"]:
        sums[stage["replica"]] = sums.get(stage["replica"], 0) + stage["peak_bytes"]
    return [sums[replica] for replica in sorted(sums)]


@SPEC
@pytest.mark.parametrize("replicas", [2, 4])
def test_each_device_holds_its_share(replicas):
    """AdamW: two moments of each weight; all devices together hold what one did."""
    _, weights, _, undealt = whole("ResidualMlp", "adamw", replicas)
    _, _, _, dealt = train("ResidualMlp", "adamw", replicas, lambda opts: deal(opts, weights=True))
    before, after = bytes_of_replicas(undealt), bytes_of_replicas(dealt)
    assert sum(before) == sum(after)
    largest = 3 * max(tensor.nbytes for tensor in weights.values()) + 64
    held = sum(3 * tensor.nbytes for tensor in weights.values())
    assert before[0] - before[1] >= held
    # The devices of a stage share out its tensors: no two differ by more than the largest one with its state.
    by_stage = {}
    for stage in dealt["stages"]:
        by_stage.setdefault(stage["name"].split("/replica")[0], []).append(stage["peak_bytes"])
    assert len(by_stage) == STAGES and all(len(held_by) == replicas for held_by in by_stage.values())
    for held_by in by_stage.values():
        assert max(held_by) - min(held_by) <= largest


@SPEC
def test_small_tensors_stay_with_the_first_replica():
    undealt = bytes_of_replicas(whole("ResidualMlp", "adamw", 2)[3])
    held = {}
    for least in (None, 16 * 16 + 1, 16 * 16, 17, 16):
        dealt = train("ResidualMlp", "adamw", 2, lambda opts, least=least: deal(opts, least=least))
        require_equal(dealt, whole("ResidualMlp", "adamw", 2))
        held[least] = bytes_of_replicas(dealt[3])
    # By default from 8192 elements on, as in PopART: none here.
    assert held[None] == held[16 * 16 + 1] == undealt
    assert held[16 * 16] == held[17] != undealt
    assert held[16] != held[17]


def test_one_replica_has_nothing_to_deal():
    dealt = train("ResidualMlp", "adamw", 1, lambda opts: deal(opts, weights=True))
    undealt = whole("ResidualMlp", "adamw", 1)
    require_equal(dealt, undealt)
    assert bytes_of_replicas(dealt[3]) == bytes_of_replicas(undealt[3])


def test_off_chip_and_dealt():
    def both(opts):
        settings = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()
        settings.minElementsForReplicatedTensorSharding(1)
        opts.TensorLocations.setOptimizerLocation(settings).setWeightLocation(settings)

    dealt = train("ResidualMlp", "adamw", 3, both)
    require_equal(dealt, whole("ResidualMlp", "adamw", 3))
    assert dealt[3]["off_chip_bytes"] > 0


class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
        self.shared = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        y = x * self.w * self.shared
        return y, poptorch.identity_loss(y.sum(), reduction="none")


def test_groups_of_replicas_deal_among_themselves():
    def run(configure):
        net = Scale()
        opts = poptorch.Options().replicationFactor(4)
        configure(opts)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
        executor = poptorch.trainingModel(net, opts, optimizer)
        grouping = poptorch.VariableRetrievalMode.OnePerGroup
        executor.w.replicaGrouping(poptorch.CommGroupType.Consecutive, 2, grouping)
        losses = [executor(torch.arange(8.0).reshape(4, 2) + step)[1] for step in range(3)]
        return torch.stack(losses), net.state_dict(), executor._executable.session.optimizerState(), None

    require_equal(run(lambda opts: deal(opts, weights=True)), run(lambda opts: None))


def test_the_state_of_a_checkpoint_fits_both():
    """What a sharded run saves an unsharded one goes on from, and the other way round."""

    def steps(executor, count):
        torch.manual_seed(2)
        for _ in range(count):
            executor(*model.batch(MICRO_BATCH * 2))

    results = []
    for first, second in ((True, False), (False, True), (False, False)):
        torch.manual_seed(0)
        model = networks.NETWORKS["Decoder"]()
        state = None
        for dealt in (first, second):
            opts = options(poptorch.PipelinedExecution, 1).replicationFactor(2)
            if dealt:
                deal(opts, weights=True)
            optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.01)
            executor = poptorch.trainingModel(model, opts, optimizer)
            executor.compile(*model.batch(MICRO_BATCH * 2))
            if state is not None:
                executor._executable.session.setOptimizerState(state)
            steps(executor, 2)
            state = executor._executable.session.optimizerState()
            executor.destroy()
        results.append({**model.state_dict(), **state})
    require_same(results[0], results[2])
    require_same(results[1], results[2])
