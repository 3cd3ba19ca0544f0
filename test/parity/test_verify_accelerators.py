"""abele.verify on accelerators, the simulated ones: equal steps are called equal, and the first operator that differs
is named, with no missing wait between streams."""

import threading

import abele
import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, Odd, cut, options
from on_accelerator import judged
from support import simulated
from test_off_chip import LOCATIONS

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.own_process]

ACCUMULATION = 5
STRATEGIES = {
    "pipeline": poptorch.PipelinedExecution,
    "zero-bubble": lambda: poptorch.PipelinedExecution().schedule("zero-bubble"),
    "sharded": poptorch.ShardedExecution,
}


@pytest.fixture(autouse=True)
def _findings():
    yield from judged(delays=5)


def made(network, num_stages):
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    cut(model, num_stages)
    return model


def on(device, strategy="pipeline", iterations=1):
    opts = options(STRATEGIES[strategy], ACCUMULATION, iterations)
    opts.deviceType(device)
    return opts


def batches(model, count=2, iterations=1):
    return [model.batch(MICRO_BATCH * ACCUMULATION * iterations) for _ in range(count)]


def verified(network, device, num_stages, strategy="pipeline", optimizer="adamw", iterations=1, configure=None):
    """In training: equal, and nobody sees that it was verified."""
    model = made(network, num_stages)
    opts = on(device, strategy, iterations=iterations)
    if configure is not None:
        configure(opts)
    calls = batches(model, iterations=iterations)
    before = {name: (value.data_ptr(), value.device, value.clone()) for name, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    random = torch.get_rng_state()
    report = abele.verify(model, *calls, options=opts, optimizer=OPTIMIZERS[optimizer](model.parameters()))
    assert report.equal, str(report)
    assert report.notes == [] and report.micro_batches == len(calls) * ACCUMULATION * iterations
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in model.state_dict().items():
        assert (value.data_ptr(), value.device) == before[name][:2] and torch.equal(value, before[name][2])
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    return report


# Encoder draws random numbers in each stage, ResNet has running statistics.
@pytest.mark.parametrize("device", ["simulated:0", "simulated:2", "simulated", "simulated:3,simulated:1"])
@pytest.mark.parametrize("network", ["Encoder", "ResNet"])
def test_an_equal_training(network, device):
    assert verified(network, device, 3).values > 500


@pytest.mark.parametrize("num_stages", [1, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategies(strategy, num_stages):
    verified("ResidualMlp", "simulated", num_stages, strategy, optimizer="sgd")


def test_several_updates_in_one_call():
    verified("Encoder", "simulated:1,simulated:0", 2, iterations=2)


def test_tensors_off_chip():
    verified("Encoder", "simulated", 2, configure=LOCATIONS["all"])


def test_graphs_of_the_device_are_not_in_the_way():
    verified("Encoder", "simulated:0", 2, configure=lambda opts: opts.deviceGraphs(True))


@pytest.mark.parametrize("device", ["simulated:1", "simulated"])
def test_an_equal_inference(device):
    model = made("ResNet", 2).eval()
    opts = poptorch.Options().deviceIterations(ACCUMULATION).autoRoundNumIPUs(True)
    opts.deviceType(device)
    assert abele.verify(model, *batches(model), options=opts).equal


# The measure is eager on the first device of the list, wherever the model is.
@pytest.mark.parametrize("device", ["simulated:0", "simulated:1,simulated:2"])
def test_a_model_that_is_on_a_device_already(device):
    model = made("Encoder", 2).to("simulated:0")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calls = [[tensor.to("simulated:3") for tensor in batch] for batch in batches(model)]
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    assert abele.verify(model, *calls, options=on(device), optimizer=optimizer).equal
    for name, value in model.state_dict().items():
        assert str(value.device) == "simulated:0" and torch.equal(value.cpu(), before[name].cpu())


def test_an_executor_goes_on_as_if_nothing_had_been_verified():
    losses = []
    for verifies in (False, True):
        model = made("Encoder", 2)
        executor = poptorch.trainingModel(model, on("simulated"), OPTIMIZERS["adamw"](model.parameters()))
        torch.manual_seed(1)
        calls = batches(model, 3)
        losses.append([executor(*calls[0])[1]])
        if verifies:
            assert abele.verify(executor, *calls)
        losses[-1] += [executor(*batch)[1] for batch in calls[1:]]
        executor.destroy()
    assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))


class Numbered(networks.Network):
    """Reads what it makes of no tensor. between: what is done behind the first part."""

    def __init__(self, between=None):
        super().__init__([torch.nn.Linear(networks.WIDTH, networks.WIDTH) for _ in range(2)])
        self.between = between
        self.calls = 0

    def forward(self, x, target):
        self.calls += 1
        x = self.parts[0](x) + torch.arange(networks.WIDTH)
        if self.between is not None:
            x = self.between(self, x)
        x = self.parts[1](x)
        return x[:, :4], torch.nn.functional.cross_entropy(x[:, :4], target)


def numbered(between=None):
    torch.manual_seed(0)
    model = Numbered(between).eval()
    cut(model, 2)
    return model


def report_of(between):
    model = numbered(between)
    opts = poptorch.Options().deviceIterations(ACCUMULATION).autoRoundNumIPUs(True)
    opts.deviceType("simulated:1,simulated:0")
    return abele.verify(model, *batches(model), options=opts)


def line_of(function, offset):
    return f"{__name__}.py:{function.__code__.co_firstlineno + offset}"


def test_tensors_that_forward_makes():
    assert report_of(None).equal


_library = torch.library.Library("abele_verify_accelerators", "DEF")
_library.define("of_the_thread(Tensor x) -> Tensor")
for key in ("CPU", "PrivateUse1"):
    _library.impl(
        "of_the_thread", lambda x: x * (2 if threading.current_thread() is threading.main_thread() else 3), key
    )


def through_the_thread(model, x):
    with poptorch.Block("other", ipu_id=1):
        return torch.ops.abele_verify_accelerators.of_the_thread(x)


def test_a_kernel_that_differs():
    difference = report_of(through_the_thread).difference
    assert difference.kind == "value" and difference.operator == "abele_verify_accelerators::of_the_thread"
    assert (difference.line, difference.stage) == (line_of(through_the_thread, 2), 1)
    assert (difference.batch, difference.micro_batch, difference.element) == (0, 0, (0, 0))
    assert difference.elements == difference.of == MICRO_BATCH * networks.WIDTH
    assert float(difference.found) / 3 == pytest.approx(float(difference.expected) / 2)


def times_the_calls(model, x):
    return x * float(model.calls)


def test_a_number_that_differs():
    difference = report_of(times_the_calls).difference
    assert difference.kind == "program" and difference.line == line_of(times_the_calls, 1)


def test_a_weight_that_differs():
    model = made("ResidualMlp", 2)
    last = [name for name, _ in model.named_parameters()][-1]
    report = abele.verify(model, *batches(model), options=on("simulated"), optimizer=Odd(model.parameters(), lr=0.1))
    assert report.difference.kind == "weight" and report.difference.operator == last


# Eager runs on one device; the CPU's kernels may give other bits than an accelerator's.
@pytest.mark.parametrize("device", ["simulated:0,cpu", "cpu,simulated:1"])
def test_stages_on_the_cpu_among_accelerators_are_refused(device):
    model = made("ResidualMlp", 2)
    with pytest.raises(poptorch.Error, match="E0702.*stages on the CPU among accelerators"):
        abele.verify(model, *batches(model), options=on(device), optimizer=OPTIMIZERS["sgd"](model.parameters()))
    assert {value.device.type for value in model.state_dict().values()} == {"cpu"}


def test_the_devices_random_numbers_are_as_before():
    model = made("Encoder", 2)
    calls, opts = batches(model), on("simulated:1")
    simulated.seed(17)
    expected = torch.rand(8, device="simulated:1").cpu()
    simulated.seed(17)
    assert abele.verify(model, *calls, options=opts, optimizer=OPTIMIZERS["sgd"](model.parameters())).equal
    assert torch.equal(torch.rand(8, device="simulated:1").cpu(), expected)
