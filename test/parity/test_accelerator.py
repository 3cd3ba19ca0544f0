"""A compiled step on an accelerator, the simulated one, beside the same step of plain PyTorch on it: the same bits, and
no missing wait between streams."""

import copy

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, SEED, cut, eager, options, require_same
from support import simulated

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.own_process]

STRATEGIES = {
    "pipeline": poptorch.PipelinedExecution,
    "gpipe": lambda: poptorch.PipelinedExecution().schedule("gpipe"),
    "zero-bubble": lambda: poptorch.PipelinedExecution().schedule("zero-bubble"),
    "sharded": poptorch.ShardedExecution,
}


@pytest.fixture(autouse=True)
def _findings():
    simulated.load()
    simulated.take_findings()
    simulated.set_delays(1)
    yield
    simulated.set_delays(0)
    torch.accelerator.synchronize(0)
    assert simulated.take_findings() == []


def on_device(model, device):
    """A copy there; tied parameters stay one, which Module.to() forgets for devices out of torch's tree."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return copy.deepcopy(model).to(device)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def train(network, strategy, num_stages, optimizer, accumulation=7, steps=3, device="simulated"):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = on_device(model, device)
    before = {name: (value.data_ptr(), value.clone()) for name, value in model.state_dict().items()}
    cut(model, num_stages)
    opts = options(STRATEGIES[strategy], accumulation)
    opts._Popart.set("abele.deviceType", device)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * accumulation) for _ in range(steps)]
    executor.compile(*batches[0])
    for name, value in model.state_dict().items():  # where it was, as it was
        assert value.device.type == "cpu" and value.data_ptr() == before[name][0]
        assert torch.equal(value, before[name][1])
    ours = [executor(*batch) for batch in batches]
    simulated.seed(SEED)
    theirs = OPTIMIZERS[optimizer](reference.parameters())
    for (output, loss), batch in zip(ours, batches, strict=True):
        expected_output, expected_loss = eager(reference, theirs, [t.to(device) for t in batch], accumulation)
        assert torch.equal(loss.reshape(-1), expected_loss.cpu()) and torch.equal(output, expected_output.cpu())
    executor.copyWeightsToHost()
    require_same(model.state_dict(), {name: value.cpu() for name, value in reference.state_dict().items()})
    executor.destroy()


@pytest.mark.parametrize("num_stages", [1, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies_and_schedules(strategy, num_stages):
    train("ResidualMlp", strategy, num_stages, "adamw")


# The simulated accelerator has no fused cells, which torch asks devices other than the CPU for.
@pytest.mark.parametrize("network", sorted(networks.NETWORKS.keys() - {"Lstm", "Gru"}))
def test_networks(network):
    train(network, "pipeline", 4, "sgd")


def test_a_model_that_is_on_the_device_already():
    torch.manual_seed(0)
    model = networks.NETWORKS["Encoder"]().to("simulated")
    reference = copy.deepcopy(model)
    cut(model, 2)
    opts = options(STRATEGIES["pipeline"], accumulation=3)
    opts._Popart.set("abele.deviceType", "simulated")
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    batch = [t.to("simulated") for t in model.batch(3 * MICRO_BATCH)]
    _, loss = executor(*batch)
    simulated.seed(SEED)
    _, expected = eager(reference, OPTIMIZERS["adamw"](reference.parameters()), batch, 3)
    assert torch.equal(loss.reshape(-1).cpu(), expected.cpu())
    executor.copyWeightsToHost()
    require_same(
        {name: value.cpu() for name, value in model.state_dict().items()},
        {name: value.cpu() for name, value in reference.state_dict().items()},
    )


def test_what_accelerators_cannot_do_yet_is_refused():
    model = torch.nn.Linear(2, 2)
    opts = poptorch.Options()
    opts._Popart.set("abele.deviceType", "simulated")
    opts.Precision.enableFloatingPointExceptions(True)
    with pytest.raises(poptorch.Error, match="E0711"):
        poptorch.inferenceModel(model, opts)(torch.ones(1, 2))


def test_another_device_than_the_first():
    train("Tied", "pipeline", 2, "adamw", device="simulated:2")


def test_inference():
    torch.manual_seed(0)
    model = networks.NETWORKS["ResNet"]().eval()
    reference = on_device(model, "simulated")
    cut(model, 3)
    opts = poptorch.Options().deviceIterations(5).autoRoundNumIPUs(True)
    opts._Popart.set("abele.deviceType", "simulated")
    executor = poptorch.inferenceModel(model, opts)
    batch = model.batch(5 * MICRO_BATCH)
    output, _ = executor(*batch)
    with torch.no_grad():
        rows = [[t[k : k + MICRO_BATCH].to("simulated") for t in batch] for k in range(0, 5 * MICRO_BATCH, MICRO_BATCH)]
        expected = torch.cat([reference(*part)[0].cpu() for part in rows])
    assert torch.equal(output, expected)


def test_the_environment_names_the_device(monkeypatch):
    monkeypatch.setenv("ABELE_DEVICE", "simulated:1")
    model = torch.nn.Linear(2, 2)
    jobs = simulated.load().simulated_jobs()
    poptorch.inferenceModel(model)(torch.ones(1, 2))
    assert simulated.load().simulated_jobs() > jobs


def test_a_device_that_is_not_there():
    opts = poptorch.Options()
    opts._Popart.set("abele.deviceType", "cuda")
    with pytest.raises(poptorch.Error, match="E0702.*there is no device cuda(.|\n)*4 of simulated"):
        poptorch.inferenceModel(torch.nn.Linear(2, 2), opts)(torch.ones(1, 2))
