"""Tensors in the host's memory while no action of an accelerator needs them, on the simulated one: strategies x
locations x lists of devices give the bits of eager PyTorch on it, and no missing wait between streams."""

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, options
from on_accelerator import judged, on_device, require_equals_eager
from support import simulated
from test_off_chip import BLOCKS, LOCATIONS, STRATEGIES

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.own_process]
STEPS = 3


@pytest.fixture(autouse=True)
def _findings():
    yield from judged(delays=3)


def train(network, strategy, configure, device, optimizer="adamw", accumulation=7, iterations=1, graphs=False):
    """Beside eager on the simulated accelerator. Returns the report of the last step."""
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = on_device(model)
    for block in range(BLOCKS):
        poptorch.BeginBlock(model.parts[block * len(model.parts) // BLOCKS], str(block))
    opts = options(strategy, accumulation, iterations)
    opts.deviceType(device)
    opts.deviceGraphs(graphs)
    configure(opts)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * accumulation * iterations) for _ in range(STEPS)]
    ours = [executor(*batch) for batch in batches]
    executor.copyWeightsToHost()
    theirs = OPTIMIZERS[optimizer](reference.parameters())
    require_equals_eager(model, ours, reference, theirs, batches, accumulation)
    report = executor.report()
    executor.destroy()
    return report


def require_off_chip(strategy, location, device):
    report = train("Encoder", STRATEGIES[strategy], LOCATIONS[location], device)
    phased = strategy.startswith(("serial", "parallel"))
    assert (report["off_chip_bytes"] > 0) == (phased or location != "default")
    assert report["heap_allocations"] == 0


# A list begins again: devices of the model on one accelerator share its memory.
@pytest.mark.parametrize("device", ["simulated:0", "simulated:2,simulated:1"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(strategy, device):
    require_off_chip(strategy, "all", device)


@pytest.mark.parametrize("location", ["default", "large"])
@pytest.mark.parametrize("strategy", ["serial-2-devices", "parallel", "1f1b", "zero-bubble"])
def test_locations(strategy, location):
    require_off_chip(strategy, location, "simulated")


@pytest.mark.parametrize("network", ["Decoder", "ResNet", "Tied"])
@pytest.mark.parametrize("device", ["simulated", "simulated:0,cpu"])
def test_networks(network, device):
    train(network, STRATEGIES["1f1b"], LOCATIONS["all"], device, optimizer="sgd")


@pytest.mark.parametrize("strategy", ["parallel", "1f1b"])
def test_a_file_takes_what_memory_has_no_room_for(strategy, tmp_path):
    def configure(opts):
        LOCATIONS["all"](opts)
        opts.offChipMemoryLimit(2000).offChipFolder(tmp_path)

    report = train("Encoder", STRATEGIES[strategy], configure, "simulated")
    assert report["off_chip_file_bytes"] > 0 and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strategy", ["serial-OffChipAfterFwd", "1f1b", "sharded"])
def test_several_updates_in_one_call(strategy):
    train("Encoder", STRATEGIES[strategy], LOCATIONS["all"], "simulated", iterations=3)


@pytest.mark.skipif(not simulated.has_graphs(), reason="this torch has no graphs of devices")
@pytest.mark.parametrize("strategy", ["serial-OffChipAfterFwd", "1f1b"])
def test_graphs_are_replayed_where_frames_lie(strategy):
    before = simulated.graphs()
    train("Encoder", STRATEGIES[strategy], LOCATIONS["all"], "simulated", graphs=True)
    assert simulated.graphs()[1] > before[1]


# Replicas share weights and devices, or have their parts of weights and optimizer state (replicated tensor sharding).
@pytest.mark.parametrize("sharded", ["none", "state", "weights and state"])
@pytest.mark.parametrize("strategy", ["serial-OffChipAfterFwd", "1f1b"])
@pytest.mark.parametrize("device", ["simulated:1", "simulated"])
def test_replicas(strategy, sharded, device):
    replicas, accumulation = 2, 7
    torch.manual_seed(0)
    model = networks.NETWORKS["Encoder"]()
    reference = on_device(model)
    for block in range(BLOCKS):
        poptorch.BeginBlock(model.parts[block * len(model.parts) // BLOCKS], str(block))
    opts = options(STRATEGIES[strategy], accumulation).replicationFactor(replicas).broadcastBuffers(False)
    opts.deviceType(device)
    LOCATIONS["all"](opts)
    for setter, is_sharded in (
        ("setWeightLocation", sharded == "weights and state"),
        ("setOptimizerLocation", sharded != "none"),
    ):
        location = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
        location.useReplicatedTensorSharding(is_sharded).minElementsForReplicatedTensorSharding(1)
        getattr(opts.TensorLocations, setter)(location)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * accumulation * replicas) for _ in range(STEPS)]
    ours = [executor(*batch) for batch in batches]
    executor.copyWeightsToHost()
    theirs = OPTIMIZERS["adamw"](reference.parameters())
    require_equals_eager(model, ours, reference, theirs, batches, accumulation, replicas)
    executor.destroy()


def test_weights_that_change_between_calls():
    torch.manual_seed(0)
    model = networks.NETWORKS["ResidualMlp"]().eval()
    batch = model.batch(MICRO_BATCH)
    reference = on_device(model)
    for block in range(BLOCKS):
        poptorch.BeginBlock(model.parts[block * len(model.parts) // BLOCKS], str(block))
    opts = options(STRATEGIES["parallel"], 1)
    opts.deviceType("simulated")
    executor = poptorch.inferenceModel(model, opts)
    for _ in range(2):
        with torch.no_grad():
            expected = reference(*(tensor.to("simulated:0") for tensor in batch))
        output, loss = executor(*batch)
        assert torch.equal(output, expected[0].cpu()) and torch.equal(loss.reshape(()), expected[1].cpu())
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                theirs.mul_(0.5)
                mine.copy_(theirs.cpu())
        executor.copyWeightsToDevice()
    executor.destroy()
