"""Where tensors live never changes a bit: strategies x locations x storage x optimizers, against eager PyTorch."""

import copy

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, options, require_same, train_equally

pytestmark = pytest.mark.usefixtures("one_thread")


USES = ("Weight", "Optimizer", "Accumulator", "Activation")
BLOCKS, STEPS = 4, 3


def serial(liveness):
    return lambda: poptorch.SerialPhasedExecution("0", ["1", "2"], "3").setTensorsLiveness(liveness)


def serial_on_two_devices():
    stage = poptorch.Stage
    strategy = poptorch.SerialPhasedExecution([stage("0"), stage("1")], [stage("2"), stage("3")])
    for index in range(2):
        strategy.phase(index).ipus(0, 1)
    return strategy.setTensorsLiveness(poptorch.Liveness.OffChipAfterFwd)


def parallel():
    return poptorch.ParallelPhasedExecution("0", "1", "2", "3").sendTensorsOffChipAfterFwd()


def pipelined(schedule, devices=BLOCKS, recompute=False):
    stages = [poptorch.Stage(str(block)).ipu(block % devices) for block in range(BLOCKS)]
    return lambda: poptorch.PipelinedExecution(*stages).schedule(schedule).recompute(recompute)


STRATEGIES = {
    **{f"serial-{liveness.name}": serial(liveness) for liveness in poptorch.Liveness},
    "serial-2-devices": serial_on_two_devices,
    "parallel": parallel,
    "sharded": lambda: poptorch.ShardedExecution("0", "1", "2", "3"),
    "1f1b": pipelined("1f1b"),
    "1f1b-recompute": pipelined("1f1b", recompute=True),
    "interleaved": pipelined("interleaved", devices=2),
    "zero-bubble": pipelined("zero-bubble"),
}


def off_chip(*uses, **settings):
    """Sets the location of these uses."""

    def apply(opts):
        location = poptorch.TensorLocationSettings().useOnChipStorage(False)
        for name, value in settings.items():
            getattr(location, name)(value)
        for use in uses:
            getattr(opts.TensorLocations, f"set{use}Location")(location)

    return apply


LOCATIONS = {
    "default": off_chip(),
    "all": off_chip(*USES, minElementsForOffChip=0),
    "large": off_chip(*USES, minElementsForOffChip=300),
}


def train(network, strategy, optimizer, configure, accumulation=7, replicas=1, steps=STEPS):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = copy.deepcopy(model)
    for block in range(BLOCKS):
        poptorch.BeginBlock(model.parts[block * len(model.parts) // BLOCKS], str(block))
    opts = options(strategy, accumulation)
    configure(opts)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    theirs = OPTIMIZERS[optimizer](reference.parameters())
    train_equally(executor, model, reference, theirs, accumulation, steps=steps)
    report = executor.report()
    executor.destroy()
    return report


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("location", LOCATIONS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_equals_eager(strategy, location, optimizer, tmp_path):
    def configure(opts):
        LOCATIONS[location](opts)
        opts.offChipMemoryLimit(0).offChipFolder(tmp_path)

    report = train("Encoder", STRATEGIES[strategy], optimizer, configure, steps=2)
    phased = strategy.startswith(("serial", "parallel"))
    assert (report["off_chip_file_bytes"] > 0) == (phased or location != "default")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strategy", ["sharded", "1f1b", "zero-bubble"])
def test_optimizer_state_alone(strategy, tmp_path):
    def configure(opts):
        off_chip("Optimizer")(opts)
        opts.offChipMemoryLimit(0).offChipFolder(tmp_path)

    report = train("Encoder", STRATEGIES[strategy], "adamw", configure)
    assert 0 < report["off_chip_bytes"] <= report["off_chip_file_bytes"]


@pytest.mark.parametrize("storage", ["memory", "file", "both"])
@pytest.mark.parametrize("network", ["ResNet", "Lstm", "Tied"])
def test_networks_and_storage(network, storage, tmp_path):
    """Running statistics, recurrent weights and tied weights; host memory, a file, some of both."""

    def configure(opts):
        if storage != "memory":
            opts.offChipMemoryLimit(0 if storage == "file" else 2000).offChipFolder(tmp_path)

    report = train(network, parallel, "adamw", configure)
    in_file, total = report["off_chip_file_bytes"], report["off_chip_bytes"]
    if storage == "memory":
        assert in_file == 0 < total
    elif storage == "file":
        assert in_file >= total > 0  # whole pages
    else:
        assert in_file > 0


def test_several_updates_in_one_call_and_replicas(tmp_path):
    def run(place):
        torch.manual_seed(0)
        model = networks.NETWORKS["Encoder"]().eval()
        for block in range(BLOCKS):
            poptorch.BeginBlock(model.parts[block * len(model.parts) // BLOCKS], str(block))
        opts = options(parallel, 2, iterations=3).replicationFactor(2)
        place(opts)
        executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
        torch.manual_seed(1)
        results = [executor(*model.batch(MICRO_BATCH * 12)) for _ in range(2)]
        report = executor.report()
        executor.destroy()
        return results, model.state_dict(), report

    on_chip = poptorch.TensorLocationSettings().useOnChipStorage(True)

    def all_on_chip(opts):
        for use in USES:
            getattr(opts.TensorLocations, f"set{use}Location")(on_chip)

    expected, expected_state, everything = run(all_on_chip)
    ours, state, report = run(lambda opts: opts.offChipMemoryLimit(0).offChipFolder(tmp_path))
    assert everything["off_chip_bytes"] == 0 < report["off_chip_file_bytes"]
    for (output, loss), (expected_output, expected_loss) in zip(ours, expected, strict=True):
        assert torch.equal(output, expected_output) and torch.equal(loss, expected_loss)
    require_same(state, expected_state)


def test_inference_and_weights_that_change_between_calls(tmp_path):
    torch.manual_seed(0)
    model = networks.NETWORKS["ResidualMlp"]().eval()
    batch = model.batch(MICRO_BATCH)
    reference = copy.deepcopy(model)
    for block in range(BLOCKS):
        poptorch.BeginBlock(model.parts[block * len(model.parts) // BLOCKS], str(block))
    opts = options(parallel, 1).offChipMemoryLimit(0).offChipFolder(tmp_path)
    executor = poptorch.inferenceModel(model, opts)
    for _ in range(2):
        with torch.no_grad():
            expected = reference(*batch)
        output, loss = executor(*batch)
        assert torch.equal(output, expected[0]) and torch.equal(loss.reshape(()), expected[1])
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                theirs.mul_(0.5)
                mine.copy_(theirs)
        executor.copyWeightsToDevice()


def test_peak_bytes_of_a_device_are_those_of_what_it_holds():
    """Off-chip tensors count for a device while they are there only."""

    def peak(place):
        model = networks.NETWORKS["Encoder"]()
        for block in range(BLOCKS):
            poptorch.BeginBlock(model.parts[block * len(model.parts) // BLOCKS], str(block))
        opts = options(lambda: poptorch.SerialPhasedExecution("0", "1", "2", "3"), 1)
        place(opts)
        executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
        executor(*model.batch(MICRO_BATCH))
        report = executor.report()
        executor.destroy()
        return max(stage["peak_bytes"] for stage in report["stages"]), report["off_chip_bytes"]

    on_chip = poptorch.TensorLocationSettings().useOnChipStorage(True)

    def all_on_chip(opts):
        for use in USES:
            getattr(opts.TensorLocations, f"set{use}Location")(on_chip)

    whole, none = peak(all_on_chip)
    held, moved = peak(lambda opts: None)
    assert none == 0 < moved
    assert whole - moved < held < whole
