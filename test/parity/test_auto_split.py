"""Programs without annotations, cut automatically: the bits of eager PyTorch, on any number of devices."""

import copy
import os

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, options, train_equally

pytestmark = pytest.mark.usefixtures("one_thread")


AutoSplit = poptorch.AutoStage.AutoSplit


def train(network, strategy, optimizer, accumulation, iterations=1, marked=False):
    """Returns the session of the compiled model."""
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = copy.deepcopy(model)
    if marked:  # blocks that would be refused under other rules
        for part in model.parts[::2]:
            poptorch.BeginBlock(part, str(id(part)))
    opts = options(strategy, accumulation, iterations)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    train_equally(executor, model, reference, OPTIMIZERS[optimizer](reference.parameters()), accumulation, iterations)
    session = executor._executable.session
    found = session.stageDevices(), session.planText(), session.graphText()
    executor.destroy()
    return found


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("network", networks.NETWORKS)
def test_training_equals_eager(network, devices, optimizer):
    # Fewer micro-batches than PopTorch asks of stages that the user placed.
    stages, _, _ = train(
        network, lambda: poptorch.PipelinedExecution(AutoSplit).devices(devices), optimizer, accumulation=3
    )
    assert stages == list(range(devices))


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zero-bubble", "zero-bubble-2", "auto"])
@pytest.mark.parametrize("network", ["Encoder", "ResNet", "Lstm", "Tied"])
def test_every_schedule_equals_eager(network, schedule):
    def strategy():
        return poptorch.PipelinedExecution(AutoSplit).devices(2).schedule(schedule)

    stages, plan, _ = train(network, strategy, "adamw", accumulation=5, iterations=2)
    if schedule == "interleaved":
        assert stages == [0, 1, 0, 1]
    if schedule != "auto":
        assert plan.startswith(f"plan {schedule} ")


@pytest.mark.parametrize("network", ["Encoder", "ResNet", "InPlace"])
def test_sharded_and_recomputed(network):
    train(network, lambda: poptorch.ShardedExecution(AutoSplit).devices(4), "sgd", accumulation=3)
    train(network, lambda: poptorch.PipelinedExecution(AutoSplit).devices(4).recompute(), "adamw", accumulation=3)


def test_blocks_do_not_matter():
    def strategy():
        return poptorch.PipelinedExecution(AutoSplit).devices(4)

    _, plain, _ = train("Encoder", strategy, "sgd", accumulation=3)
    _, marked, _ = train("Encoder", strategy, "sgd", accumulation=3, marked=True)
    assert plain == marked


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("network", networks.NETWORKS)
def test_inference_equals_eager(network, devices):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]().eval()
    batch = model.batch(MICRO_BATCH * 3)
    with torch.no_grad():
        expected = [model(*(t[MICRO_BATCH * k : MICRO_BATCH * (k + 1)] for t in batch)) for k in range(3)]
    opts = options(lambda: poptorch.PipelinedExecution(AutoSplit).devices(devices), 1, 3)
    executor = poptorch.inferenceModel(copy.deepcopy(model), opts)
    output, loss = executor(*batch)
    assert torch.equal(output, torch.cat([o for o, _ in expected]))
    assert torch.equal(loss, torch.stack([v for _, v in expected]))
    assert executor._executable.session.stageDevices() == list(range(devices))
    executor.destroy()


def test_equal_programs_are_cut_alike():
    def strategy():
        return poptorch.PipelinedExecution(AutoSplit).devices(3).schedule("auto")

    texts = {train("Decoder", strategy, "adamw", accumulation=4)[1:] for _ in range(2)}
    assert len(texts) == 1


PRODUCTS = ["aten.mm(", "aten.addmm(", "abele.accumulate_product("]


def test_backward_follows_its_forward():
    strategy = lambda: poptorch.PipelinedExecution(AutoSplit).devices(4).schedule("1f1b")  # noqa: E731
    _, _, graph = train("Decoder", strategy, "sgd", accumulation=3)
    stages = {"fwd": [0] * 4, "bwd": [0] * 4}
    for line in graph.splitlines():
        if "stage=" not in line or not any(name in line for name in PRODUCTS):
            continue
        stages["bwd" if "dir=bwd" in line else "fwd"][int(line.split("stage=")[1].split(",")[0].rstrip("}"))] += 1
    # Two matrix products of backward, for input and weight, belong to one of forward.
    assert all(backward == 2 * forward > 0 for forward, backward in zip(stages["fwd"], stages["bwd"], strict=True))


class BalancedStack(torch.nn.Module):
    """Layers beside which the loss is small."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(8))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return poptorch.identity_loss(x.square().mean(), reduction="none")


def stages_of_layers(opts):
    model = BalancedStack()
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
    executor.compile(torch.randn(8 * opts.Training.gradient_accumulation, 256))
    lines = [line for line in executor._executable.session.graphText().splitlines() if "aten.addmm(" in line]
    executor.destroy()
    return [int(line.split("stage=")[1].split(",")[0].rstrip("}")) for line in lines]


def test_equal_layers_are_shared_out_evenly():
    opts = options(lambda: poptorch.PipelinedExecution(AutoSplit).devices(4), 8)
    assert stages_of_layers(opts) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_without_a_number_there_is_a_device_for_each_core():
    cores = sorted(os.sched_getaffinity(0))
    for number in {1, min(3, len(cores))}:
        os.sched_setaffinity(0, cores[:number])  # of this thread, which compiles
        try:
            opts = options(lambda: poptorch.PipelinedExecution(AutoSplit), 8)
            stages = sorted(set(stages_of_layers(opts)))
        finally:
            os.sched_setaffinity(0, cores)
        assert stages == list(range(1 << (number.bit_length() - 1)))  # PopTorch reserves powers of two


def test_options():
    strategy = poptorch.PipelinedExecution(AutoSplit).devices(4).schedule("auto")
    assert repr(strategy) == 'PipelinedExecution(AutoStage.AutoSplit).devices(4).schedule("auto")'
    with pytest.raises(AssertionError, match="AutoSplit"):
        poptorch.PipelinedExecution().devices(4)
    for wrong in (0, -1, "4"):
        with pytest.raises(AssertionError, match="devices"):
            poptorch.PipelinedExecution(AutoSplit).devices(wrong)
