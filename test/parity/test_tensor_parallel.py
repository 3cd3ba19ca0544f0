"""Blocks over several devices (tensorParallel): the bits of eager PyTorch, for any number of devices."""

import copy
import itertools
import os
import re

import abele
import pytest
import torch
from several_devices import (
    NETWORKS,
    STEPS,
    STRATEGIES,
    count_cached,
    devices_of,
    make,
    options_of,
    require_bits,
    train,
)
from test_off_chip import LOCATIONS
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

# Each network with each number of devices and stages; the other settings take turns.
CASES = [
    (network, devices, stages, list(STRATEGIES)[i % 3], (1, 4)[i // 2 % 2], (1, 3)[i // 3 % 2])
    for i, (network, devices, stages) in enumerate(itertools.product(NETWORKS, (2, 3, 4), (1, 2)))
]
PARAMETERS = ("network", "devices", "num_stages", "strategy", "accumulation", "micro_batch")


@pytest.mark.parametrize(PARAMETERS, CASES)
def test_trains_as_eager(network, devices, num_stages, strategy, accumulation, micro_batch):
    used = train(network, num_stages, options_of(devices, strategy, accumulation), accumulation, micro_batch)
    assert max(used) < num_stages * devices
    assert len(used) > num_stages


@pytest.mark.parametrize(PARAMETERS, CASES)
def test_predicts_as_eager(network, devices, num_stages, strategy, accumulation, micro_batch):
    model, reference = make(network, num_stages)
    model.eval(), reference.eval()
    executor = abele.inferenceModel(model, options_of(devices, strategy, iterations=accumulation))
    torch.manual_seed(1)
    for _ in range(2):
        batch = model.batch(micro_batch * accumulation)
        output, loss = executor(*batch)
        with torch.no_grad():
            rows = zip(*(tensor.split(micro_batch) for tensor in batch), strict=True)
            expected = [reference(*each) for each in rows]
        require_bits(output, torch.cat([each[0] for each in expected]), "output")
        require_bits(loss.reshape(-1), torch.stack([each[1] for each in expected]), "loss")
    # Torch has one operator for a whole encoder layer that predicts, and it is not divided.
    assert len(devices_of(executor)) > num_stages or network == "Bert"
    executor.destroy()


@pytest.mark.parametrize("network", NETWORKS)
def test_two_threads(network):
    torch.set_num_threads(2)
    assert len(train(network, 1, options_of(2))) == 2


def test_devices_share_the_threads_of_torch():
    torch.set_num_threads(4)
    opts = options_of(2).threadsPerDevice(0)
    torch.set_num_threads(2)  # a device has half of the 4 below, and so has eager
    model, reference = make("Gpt", 1)
    model.eval(), reference.eval()
    torch.set_num_threads(4)
    executor = abele.inferenceModel(model, opts)
    batch = model.batch(1)
    output = executor(*batch)[0]
    torch.set_num_threads(2)
    with torch.no_grad():
        require_bits(output, reference(*batch)[0], "output")


@pytest.mark.parametrize("network", NETWORKS)
def test_trials_that_fail_leave_operators_whole(network, monkeypatch):
    monkeypatch.setenv("ABELE_SHARD_TRIALS", "fail")
    train(network, 2, options_of(2, accumulation=4), accumulation=4)


@pytest.mark.parametrize("network", NETWORKS)
def test_memories_of_their_own(network):
    assert len(train(network, 2, options_of(2, accumulation=4).separateMemory(True), accumulation=4)) > 2


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tensors_off_chip(network, strategy):
    number = list(NETWORKS).index(network) + list(STRATEGIES).index(strategy)
    opts = options_of(number % 2 + 2, strategy, accumulation=4).separateMemory(number % 3 == 0)
    LOCATIONS["all"](opts)
    assert train(network, 2, opts, accumulation=4, result=lambda executor: executor.report()["off_chip_bytes"]) > 0


PHASES = {
    liveness.name: lambda liveness=liveness: abele.SerialPhasedExecution("0", "1", "2").setTensorsLiveness(liveness)
    for liveness in abele.Liveness
} | {"parallel": lambda: abele.ParallelPhasedExecution("0", "1", "2")}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("phases", PHASES)
def test_phases(network, phases):
    number = list(NETWORKS).index(network) + list(PHASES).index(phases)
    opts = options_of(number % 2 + 2, accumulation=3).separateMemory(number % 3 == 0)
    opts.setExecutionStrategy(PHASES[phases]())
    assert len(train(network, 3, opts, accumulation=3)) > 1


@pytest.mark.parametrize(("devices", "most"), [(2, 0.7), (4, 0.45)])
def test_memories_hold_parts(devices, most):
    """Weights, gradient sums, optimizer state and activations together."""

    def planned_bytes(executor):
        return max(device["peak_bytes"] for device in executor.memoryReport()["devices"])

    apart = train("Wide", 1, options_of(devices).separateMemory(True), result=planned_bytes)
    assert apart / train("Wide", 1, options_of(1), result=planned_bytes) < most


SCHEDULES = ("zero-bubble", "zero-bubble-2", "interleaved")


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules(network, schedule):
    number = list(NETWORKS).index(network) + SCHEDULES.index(schedule)
    opts = options_of(1 if schedule == "interleaved" else number % 2 + 2, accumulation=6)
    opts.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoIncrement).schedule(schedule))
    stages = ([0, 1], [2, 3], [0, 1], [2, 3]) if schedule == "interleaved" else number % 2 + 2
    train(network, stages, opts.separateMemory(number % 3 == 0), accumulation=6)


def test_a_zero_bubble_order_runs_weight_gradients_of_each_device_late():
    opts = options_of(2, accumulation=6)
    opts.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule("zero-bubble"))
    plan = train("Gpt", 2, opts, accumulation=6, result=lambda executor: executor.planText())
    for worker in range(4):
        late = re.findall(r"W\d+\.(\d)", plan.split(f"\nworker {worker}: ")[1].splitlines()[0])
        assert set(late) == set("012345"), worker


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_costs_of_a_run_serve_the_next_one(schedule):
    def run(costs=None):
        opts = options_of(2, accumulation=4)
        strategy = abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule(schedule)
        if costs is not None:
            strategy.costs(costs)
        return train("Gpt", 2, opts.setExecutionStrategy(strategy), accumulation=4, result=lambda each: each.costs())

    costs = run()
    assert len(run(costs)["stages"]) == len(costs["stages"])


def train_recomputing(network, devices, recompute, result=devices_of):
    opts = options_of(devices, accumulation=8)
    strategy = abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule("gpipe").recompute(recompute)
    return train(network, 2, opts.setExecutionStrategy(strategy), accumulation=8, micro_batch=8, result=result)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("devices", [2, 3])
def test_recomputes_as_eager(network, devices):
    assert len(train_recomputing(network, devices, True)) > 2


@pytest.mark.parametrize("network", ["Mlp", "Gpt"])
def test_recomputation_takes_less_memory(network):
    def planned_bytes(executor):
        return sum(device["peak_bytes"] for device in executor.memoryReport()["devices"])

    recomputed, kept = (train_recomputing(network, 2, each, planned_bytes) for each in (True, False))
    assert recomputed < kept


@pytest.mark.parametrize(("network", "devices", "separate"), [("Mlp", 2, False), ("Gpt", 3, True), ("Bert", 2, True)])
def test_recomputes_as_little_as_fits(network, devices, separate):
    def run(recompute, limit=None):
        opts = options_of(devices, accumulation=4).separateMemory(separate)
        strategy = abele.PipelinedExecution(abele.AutoStage.SameAsIpu).schedule("gpipe").recompute(recompute)
        if limit is not None:
            opts.deviceMemoryLimit(limit)
        return train(network, 2, opts.setExecutionStrategy(strategy), accumulation=4, micro_batch=4, result=seen)

    def seen(executor):
        peaks = {f"IPU{device['device']}": device["peak_bytes"] for device in executor.memoryReport()["devices"]}
        return peaks, executor._executable.session.graphText().count("dir=bwd")

    (kept, least), (again, most) = run(False), run(True)
    limit = {device: (kept[device] + min(kept[device], again[device])) // 2 for device in kept}
    assert any(limit[device] < kept[device] for device in limit)
    peaks, number = run("fit", limit)
    assert all(peaks[device] <= limit[device] for device in limit)
    assert least < number < most
    assert run("fit", 1 << 30) == (kept, least)


@pytest.mark.parametrize("network", NETWORKS)
def test_verify_compares_each_part(network):
    model, _ = make(network, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = [model.batch(4) for _ in range(2)]
    proof = abele.verify(model, *batches, options=options_of(2, accumulation=2), optimizer=optimizer)
    assert proof.equal, str(proof)


@pytest.mark.parametrize("network", ["Mlp", "Gpt", "ConvNet"])
def test_splits_by_itself(network):
    opts = options_of(2, accumulation=4)
    opts.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(2).schedule("1f1b"))
    assert train(network, 0, opts, accumulation=4) == {0, 1, 2, 3}


def test_without_a_number_the_groups_have_a_core_for_each_device():
    opts = options_of(2, accumulation=4)
    opts.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit))
    used = train("Gpt", 0, opts, accumulation=4)
    assert {0, 1} <= used <= set(range(max(2, len(os.sched_getaffinity(0)) // 2 * 2)))


def test_the_number_of_groups_can_be_measured():
    opts = options_of(2, accumulation=4)
    opts.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices("measured"))
    assert "devices measured on" in train("Gpt", 0, opts, accumulation=4, result=abele.explain)


class Statistic(nn.Module):
    """Its forward writes a buffer, which parts of later operators read."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(256, 256)
        self.register_buffer("statistic", torch.zeros(256))

    def forward(self, x):
        y = self.layer(x)
        self.statistic.mul_(0.9).add_(y.detach().mean(0))
        return self.layer(torch.relu(y) * self.statistic) + self.statistic


@pytest.mark.parametrize("devices", [2, 3])
def test_parts_read_a_buffer_that_forward_writes(devices):
    torch.manual_seed(0)
    model = Statistic().eval()
    reference = copy.deepcopy(model)
    executor = abele.inferenceModel(model, options_of(devices, iterations=3))
    x = torch.randn(3 * 64, 256)
    with torch.no_grad():
        require_bits(executor(x), torch.cat([reference(rows) for rows in x.split(64)]), "output")
    executor.copyWeightsToHost()
    require_bits(model.statistic, reference.statistic, "statistic")


def require_same_as_one_device(num_stages, replicas=1, **of_optimizer):
    """Compares with one device where eager has no counterpart. Returns the devices that did something."""

    def losses(devices):
        model, _ = make("Gpt", num_stages)
        opts = options_of(devices, accumulation=2).replicationFactor(replicas)
        optimizer = abele.optim.AdamW(model.parameters(), lr=0.01, **of_optimizer)
        executor = abele.trainingModel(model, opts, optimizer)
        torch.manual_seed(1)
        found = torch.stack([executor(*model.batch(4 * replicas))[1] for _ in range(STEPS)])
        used = devices_of(executor)
        executor.destroy()
        return found, used

    (ours, used), (theirs, _) = losses(2), losses(1)
    require_bits(ours, theirs, "losses")
    return used


def test_clipping_sees_the_gradients_of_all_devices():
    assert require_same_as_one_device(2, max_grad_norm=0.1) == {0, 1, 2, 3}


def test_replicas_have_devices_of_their_own():
    assert require_same_as_one_device(1, replicas=2) == {0, 1, 2, 3}


def test_one_device_is_the_default():
    def plan(opts):
        model, _ = make("Gpt", 2)
        executor = abele.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.01))
        executor.compile(*model.batch(2))
        return executor.planText()

    one, other = options_of(1), options_of(2)
    other.deleteIfExists("tensor_parallel")
    assert plan(one) == plan(other) != plan(options_of(2))


# The devices of two blocks, and how many devices there are.
LISTS = {
    "two groups": (([0, 1], [2, 3]), 4),
    "one device, then three": ((0, [1, 2, 3]), 4),
    "two devices, then one": ((range(2), "2"), 3),
    "in another order": (((1, 0), [3, 2]), 4),
    "overlapping": (([0, 1], [1, 2]), 3),
    "one group": (([0, 1], [0, 1]), 2),
}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("places", LISTS)
def test_blocks_name_their_devices(network, places):
    strategy = list(STRATEGIES)[(list(LISTS).index(places) + list(NETWORKS).index(network)) % 3]
    stages, devices = LISTS[places]
    used = train(network, stages, options_of(1, strategy, accumulation=4), accumulation=4, micro_batch=3)
    assert used == set(range(devices))


def test_a_list_is_the_same_as_the_option():
    def plan(opts, stages):
        model, _ = make("Gpt", stages)
        executor = abele.trainingModel(model, opts, torch.optim.AdamW(model.parameters(), lr=0.01))
        executor.compile(*model.batch(2))
        return executor.planText()

    assert plan(options_of(2), 2) == plan(options_of(1), ([0, 1], [2, 3])) != plan(options_of(1), 2)


def test_the_first_block_of_a_stage_places_it():
    model, _ = make("Mlp", ([0, 1], 0))
    executor = abele.inferenceModel(model.eval(), options_of(1))
    executor(*model.batch(4))
    assert devices_of(executor) == {0, 1}


@pytest.mark.parametrize("places", [[], [1, 1], [0, -1], [0, "x"], [0.5, 1], [[0], 1]])
def test_wrong_lists_are_refused(places):
    model, _ = make("Mlp", [places])
    executor = abele.inferenceModel(model, options_of(1))
    with pytest.raises(abele.Error, match="E0710"):
        executor(*model.batch(1))


def test_a_list_and_the_option_are_refused():
    model, _ = make("Mlp", [[0, 1]])
    executor = abele.inferenceModel(model, options_of(2))
    with pytest.raises(abele.Error, match=r"E0702(.|\n)*tensorParallel"):
        executor(*model.batch(1))


def test_a_list_beyond_the_devices_is_refused():
    model, _ = make("Gpt", ([0, 1], [2, 3]))
    executor = abele.inferenceModel(model.eval(), options_of(1).devices(3))
    with pytest.raises(abele.Error, match="E0402"):
        executor(*model.batch(1))


def test_more_devices_than_there_are_are_refused():
    model, _ = make("Gpt", 2)
    executor = abele.inferenceModel(model.eval(), options_of(2).devices(3))
    with pytest.raises(abele.Error, match="E0402"):
        executor(*model.batch(1))


def test_compiled_programs_of_other_degrees_are_others(tmp_path):
    assert count_cached(tmp_path, [options_of(devices) for devices in (1, 2, 3, 2)]) == 3


@pytest.mark.parametrize("stages", [1, [[0, 1]]])
def test_a_search_for_the_schedule_is_refused(stages):
    opts = options_of(2 if stages == 1 else 1)
    opts.setExecutionStrategy(abele.PipelinedExecution().schedule("auto"))
    model, _ = make("Mlp", stages)
    with pytest.raises(abele.Error, match=r"E0711(.|\n)*tensorParallel(.|\n)*leave one of the two out"):
        executor = abele.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.1))
        executor(*model.batch(1))


@pytest.mark.parametrize("devices", [0, -1, "two"])
def test_a_wrong_number_is_refused(devices):
    with pytest.raises(abele.Error, match="E0702"):
        abele.Options().tensorParallel(devices)
