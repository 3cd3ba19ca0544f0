"""Devices that take micro-batches in turn (dataParallel): the bits of eager PyTorch, for any number of devices."""

import itertools

import abele
import pytest
import torch
from several_devices import NETWORKS, STRATEGIES, count_cached, make, options_of, require_bits, train
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


def in_turn(devices, strategy="1f1b", accumulation=1, iterations=1):
    return options_of(devices, strategy, accumulation, iterations, way="dataParallel")


def workers_of(executor):
    text = executor._executable.session.executableText()
    return sum(line.strip().startswith("worker ") for line in text.splitlines())


# Each network with each number of devices and stages; the other settings take turns.
CASES = [
    (network, devices, stages, list(STRATEGIES)[i % 3], (4, 5, 7)[i // 2 % 3], (1, 3)[i // 3 % 2])
    for i, (network, devices, stages) in enumerate(itertools.product(NETWORKS, (2, 3, 4), (1, 2)))
]
PARAMETERS = ("network", "devices", "num_stages", "strategy", "accumulation", "micro_batch")


@pytest.mark.parametrize(PARAMETERS, CASES)
def test_trains_as_eager(network, devices, num_stages, strategy, accumulation, micro_batch):
    opts = in_turn(devices, strategy, accumulation)
    workers = train(network, num_stages, opts, accumulation, micro_batch, result=workers_of)
    assert workers == devices * num_stages


@pytest.mark.parametrize("network", NETWORKS)
def test_predicts_as_eager(network):
    model, reference = make(network, 1)
    model.eval(), reference.eval()
    executor = abele.inferenceModel(model, in_turn(3, iterations=7))
    torch.manual_seed(1)
    for _ in range(2):
        batch = model.batch(14)
        output, loss = executor(*batch)
        with torch.no_grad():
            rows = zip(*(tensor.split(2) for tensor in batch), strict=True)
            expected = [reference(*each) for each in rows]
        require_bits(output, torch.cat([each[0] for each in expected]), "output")
        require_bits(loss.reshape(-1), torch.stack([each[1] for each in expected]), "loss")
    assert workers_of(executor) == 3
    executor.destroy()


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("schedule", ["zero-bubble", "zero-bubble-2", "interleaved"])
def test_schedules(network, schedule):
    opts = in_turn(2, accumulation=6)
    opts.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule(schedule))
    assert train(network, 2, opts, accumulation=6, result=workers_of) == 4


@pytest.mark.parametrize("network", NETWORKS)
def test_recomputes_as_eager(network):
    opts = in_turn(2, "gpipe", accumulation=4)
    opts.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule("gpipe").recompute(True))
    train(network, 1, opts, accumulation=4)


@pytest.mark.parametrize("network", NETWORKS)
def test_several_updates_a_call(network):
    opts = in_turn(2, accumulation=3, iterations=3)
    train(network, 1, opts, accumulation=3, iterations=3)


@pytest.mark.parametrize("network", NETWORKS)
def test_with_divided_operators(network):
    opts = in_turn(2, accumulation=4).tensorParallel(2)
    assert train(network, 1, opts, accumulation=4, result=workers_of) == 4


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_device_without_a_micro_batch_has_no_work(accumulation):
    assert train("Mlp", 1, in_turn(3, accumulation=accumulation), accumulation, result=workers_of) == accumulation


def test_two_threads():
    torch.set_num_threads(2)
    train("Gpt", 1, in_turn(2, accumulation=4), accumulation=4)


class Counter(nn.Module):
    """Forward reads what it wrote for the micro-batch before, and backward reads it too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        for _ in range(3):
            x = torch.relu(self.layer(x))
        scale = 1 + self.seen.clone()
        self.seen.mul_(0.5).add_(x.detach().mean(0))
        return abele.identity_loss(x * scale * self.seen.clone(), "sum")


def test_buffers_go_from_micro_batch_to_micro_batch():
    torch.manual_seed(0)
    ours, theirs = Counter(), Counter()
    theirs.load_state_dict(ours.state_dict())
    opts = abele.Options().dataParallel(3).threadsPerDevice(1).outputMode(abele.OutputMode.All)
    opts.Training.gradientAccumulation(7)
    executor = abele.trainingModel(ours, opts, torch.optim.SGD(ours.parameters(), lr=0.01))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01)
    for _ in range(3):
        x = torch.randn(14, 8)
        losses = executor(x)
        optimizer.zero_grad()
        expected = []
        for part in x.split(2):
            loss = theirs(part)
            (loss / 7).backward()
            expected.append(loss.detach())
        optimizer.step()
        require_bits(losses, torch.stack(expected), "losses")
    for (name, a), b in zip(ours.state_dict().items(), theirs.state_dict().values(), strict=True):
        require_bits(a, b, name)


def trained(devices, make_optimizer, steps=2):
    """The weights after training on this many devices."""
    model, _ = make("Gpt", 1)
    executor = abele.trainingModel(model, in_turn(devices, accumulation=4), make_optimizer(model.parameters()))
    torch.manual_seed(1)
    for _ in range(steps):
        executor(*model.batch(8))
    return model.state_dict()


def require_same_as_one_device(make_optimizer):
    one, two = trained(1, make_optimizer), trained(2, make_optimizer)
    for name in one:
        require_bits(two[name], one[name], name)


def test_clipping_sees_all_gradients():
    require_same_as_one_device(lambda p: abele.optim.AdamW(p, lr=0.01, max_grad_norm=0.1))


def test_groups_of_parameters():
    def make_optimizer(parameters):
        first, *others = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.1}, {"params": others}], lr=0.01, momentum=0.9)

    require_same_as_one_device(make_optimizer)


def test_a_saved_program_takes_turns(tmp_path):
    model, _ = make("Mlp", 1)
    model.eval()
    executor = abele.inferenceModel(model, in_turn(2, iterations=4))
    batch = model.batch(8)
    expected = executor(*batch)
    executor.save(str(tmp_path / "program"))
    executor.destroy()
    loaded = abele.load(str(tmp_path / "program"), trust=True)
    for a, b in zip(loaded(*batch), expected, strict=True):
        require_bits(a, b, "result")
    assert workers_of(loaded) == 2


@pytest.mark.parametrize("network", NETWORKS)
def test_verify_compares_every_value(network):
    def proof(devices):
        model, _ = make(network, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(1)
        batches = [model.batch(8) for _ in range(2)]
        return abele.verify(model, *batches, options=in_turn(devices, accumulation=4), optimizer=optimizer)

    one, two = proof(1), proof(2)
    assert two.equal, str(two)
    assert two.values == one.values


def test_compiled_programs_of_other_numbers_are_others(tmp_path):
    assert count_cached(tmp_path, [in_turn(devices, iterations=4) for devices in (1, 2, 3, 2)]) == 3


def test_devices_wait_as_the_report_says():
    model, _ = make("Gpt", 1)
    executor = abele.inferenceModel(model.eval(), in_turn(2, iterations=4))
    executor(*model.batch(4))
    report = executor.report()
    (stage,) = report["stages"]
    assert stage["busy_ns"] + stage["waiting_ns"] == 2 * report["step_ns"]


def test_more_devices_than_there_are_are_refused():
    model, _ = make("Mlp", 2)
    executor = abele.inferenceModel(model.eval(), in_turn(2, iterations=4).devices(3))
    with pytest.raises(abele.Error, match=r"E0402(.|\n)*dataParallel\(2\) needs 4 devices"):
        executor(*model.batch(4))


REFUSED = {
    "phased": lambda o: o.setExecutionStrategy(abele.SerialPhasedExecution("a", "b")),
    "measured": lambda o: o.setExecutionStrategy(
        abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices("measured")
    ),
    "off chip": lambda o: o.TensorLocations.setWeightLocation(abele.TensorLocationSettings().useOnChipStorage(False)),
    "replicas": lambda o: o.replicationFactor(2),
    "memories": lambda o: o.separateMemory(True),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_available_is_refused(what):
    opts = in_turn(2, accumulation=4)
    REFUSED[what](opts)
    model, _ = make("Mlp", 2)
    with pytest.raises(abele.Error, match=r"E0711(.|\n)*dataParallel(.|\n)*leave one of the two out"):
        executor = abele.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
        executor(*model.batch(8))


@pytest.mark.parametrize("devices", [0, -1, "two"])
def test_a_wrong_number_is_refused(devices):
    with pytest.raises(abele.Error, match="E0702"):
        abele.Options().dataParallel(devices)
