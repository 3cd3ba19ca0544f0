"""Measured costs: what CompiledModel.costs() tells, the schedules that order by them, and offline targets."""

import json
import os

import abele
import pytest
import torch


class Chain(torch.nn.Module):
    """So many blocks b0, b1, ... of one layer."""

    def __init__(self, blocks):
        super().__init__()
        torch.manual_seed(3)
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(blocks))
        for index, block in enumerate(self.blocks):
            abele.BeginBlock(block, f"b{index}", ipu_id=index)

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return x, abele.identity_loss(x**2, reduction="mean")


def options(stages, accumulation=6, schedule="1f1b", costs=None, devices=None):
    placed = [abele.Stage(f"b{s}").ipu(s % (devices or stages)) for s in range(stages)]
    strategy = abele.PipelinedExecution(*placed).schedule(schedule)
    opts = abele.Options()
    opts.setExecutionStrategy(strategy if costs is None else strategy.costs(costs))
    opts.Training.gradientAccumulation(accumulation)
    opts.threadsPerDevice(1)  # or one device would get all cores, and other sums
    return opts.showCompilationProgressBar(False)


def compiled(stages, **settings):
    module = Chain(stages)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    return abele.trainingModel(module, options(stages, **settings), optimizer)


def trained(model, steps=2):
    """Results of a few steps, and the weights behind them."""
    torch.manual_seed(4)
    results = [model(torch.randn(24, 24)) for _ in range(steps)]
    return [t for pair in results for t in pair] + [p.detach().clone() for p in model.parameters()]


def uneven(*stages):
    """Costs by forward, backward and weight gradient of each stage."""
    keys = "forward_ns", "backward_ns", "weight_grad_ns"
    return {"hop_ns": 0, "stages": [dict(zip(keys, stage, strict=True)) for stage in stages]}


@pytest.mark.parametrize("schedule", ["zero-bubble", "zero-bubble-2"])
def test_orders_follow_the_costs_and_results_do_not(schedule):
    models = [
        compiled(3, schedule=schedule, costs=costs)
        for costs in (
            None,
            uneven((100, 100, 100), (100, 100, 100), (100, 100, 100)),
            json.dumps(uneven((10, 10, 10), (10, 900, 10), (900, 10, 900))),
            uneven((900, 900, 10), (10, 10, 900), (10, 10, 10)),
        )
    ]
    results = [trained(model) for model in [*models, compiled(3)]]
    assert len({model.planText() for model in models}) > 1
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_hop_changes_the_order():
    equal = [{"forward_ns": 100, "backward_ns": 100, "weight_grad_ns": 100}] * 4
    charts = {hop: abele.simulate(equal, "zero-bubble", 8, hop_ns=hop).chart() for hop in (0, 500)}
    assert charts[0] != charts[500]
    for hop in (0, 20, 100, 500):
        slowest = abele.simulate(equal, "1f1b", 8, hop_ns=hop)["step_ns"]
        for schedule in ("zero-bubble", "zero-bubble-2"):
            assert abele.simulate(equal, schedule, 8, hop_ns=hop)["step_ns"] <= slowest


def test_own_costs_are_taken():
    first = compiled(3, schedule="zero-bubble")
    trained(first)
    again = compiled(3, schedule="zero-bubble", costs=first.costs())
    assert all(torch.equal(a, b) for a, b in zip(trained(again), trained(compiled(3)), strict=True))


def test_costs_are_part_of_the_cache_key(tmp_path):
    def from_cache(costs):
        module = Chain(2)
        opts = options(2, schedule="zero-bubble", costs=costs).enableExecutableCaching(str(tmp_path))
        model = abele.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=0.1))
        model.compile(torch.randn(24, 24))
        return model.report()["from_cache"]

    costs = uneven((1, 2, 3), (1, 2, 3)), uneven((1, 2, 3), (4, 5, 6))
    assert [from_cache(c) for c in (*costs, *costs)] == [False, False, True, True]


@pytest.mark.parametrize(
    "costs, found",
    [
        ("{", "costs that cannot be read"),
        ({"stages": [{"forward": 1}]}, 'unknown key "forward"'),
        ({"stages": [{"forward_ns": -1}, {}]}, "a negative time or size"),
        ({"stages": [{"forward_ns": 1}]}, "costs of 1 stages for a program of 2"),
    ],
)
def test_costs_that_do_not_fit_are_refused(costs, found):
    model = compiled(2, schedule="zero-bubble", costs=costs)
    with pytest.raises(abele.Error, match="E0404") as error:
        model.compile(torch.randn(24, 24))
    assert found in str(error.value)


def test_costs_are_a_dict_or_text():
    with pytest.raises(AssertionError, match="a dict or JSON text"):
        abele.PipelinedExecution().costs(3)


@pytest.mark.parametrize("stages, devices", [(2, 2), (4, 2), (3, 3)])
def test_memory_is_told_for_every_schedule_from_one_compilation(stages, devices):
    one = compiled(stages, devices=devices)
    one.compile(torch.randn(24, 24))
    costs = one.costs()
    assert costs["stages"][0]["users"]
    for schedule in ("1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-2"):
        for accumulation in (2, 6):
            settings = {"schedule": schedule, "accumulation": accumulation, "costs": costs}
            model = compiled(stages, devices=devices, **settings)
            model.compile(torch.randn(4 * accumulation, 24))
            peaks = {stage["device"]: stage["peak_bytes"] for stage in model.report()["stages"]}
            told = {w["device"]: w["peak_bytes"] for w in abele.simulate(costs, schedule, accumulation)["workers"]}
            assert told == peaks, (schedule, accumulation)


def test_times_are_those_of_calls():
    model = compiled(2)
    model.compile(torch.randn(24, 24))
    assert model.costs()["host_ns"] == 0
    trained(model, 3)
    costs = model.costs()
    assert costs["host_ns"] > 0 and costs["action_ns"] > 0 and costs["cores"] in (0, os.cpu_count())
    step = model.simulate()
    assert step["schedule"] == "1f1b" and step["micro_batches"] == 6
    assert step["step_ns"] > costs["host_ns"]


def test_an_offline_target_is_simulated():
    module = Chain(2)
    opts = options(2, schedule="gpipe").useOfflineIpuTarget()
    model = abele.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=0.1))
    model.compile(torch.randn(24, 24))
    with pytest.raises(AssertionError, match="offline device"):
        model(torch.randn(24, 24))
    step = model.simulate()
    assert step["schedule"] == "gpipe" and step["held"] == [6, 6] and step["step_ns"] > 0
    assert step["peak_bytes"] == max(stage["peak_bytes"] for stage in model.report()["stages"])


def test_offline_inference_is_simulated():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.chain = Chain(2)

        def forward(self, x):
            return self.chain(x)[0]

    opts = abele.Options().useOfflineIpuTarget().deviceIterations(5)
    model = abele.inferenceModel(Model(), opts)
    model.compile(torch.randn(20, 24))
    step = model.simulate()
    assert step["device_iterations"] == 5 and len(step["workers"]) == 2


@pytest.mark.parametrize("cores", [None, 1])
def test_any_number_of_devices_on_any_cores_gives_the_same(cores):
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs sched_setaffinity")
    own = os.sched_getaffinity(0)
    try:
        if cores:
            os.sched_setaffinity(0, sorted(own)[:cores])
        results = [
            trained(compiled(8, devices=devices, schedule=schedule, accumulation=4))
            for devices in range(1, 9)
            for schedule in ("1f1b", "interleaved", "zero-bubble")
        ]
    finally:
        os.sched_setaffinity(0, own)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_a_thousand_devices():
    layers = [{"forward_ns": 100, "backward_ns": 100, "weight_grad_ns": 100, "stash_bytes": 8, "repeat": 2048}]
    step = abele.simulate(layers, "1f1b", 128, devices=1024)
    assert len(step["workers"]) == 1024 and step["frames"][0] == 128
    assert step["step_ns"] == (128 + 1023) * 600
