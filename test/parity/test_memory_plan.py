"""The plan says what a run uses: by class, by layer, in all, to the byte."""

import itertools
import json

import poptorch
import pytest
from against_eager import MICRO_BATCH, options
from test_matrix import NETWORKS, OPTIMIZERS, STRATEGIES, make_batches, make_model, make_strategy

pytestmark = pytest.mark.usefixtures("one_thread")


STAGES, ACCUMULATION = 2, 3
CONFIGURATIONS = [
    (strategy, network, recompute, tuple(OPTIMIZERS)[(s + n + recompute) % len(OPTIMIZERS)])
    for (s, strategy), (n, network), recompute in itertools.product(
        enumerate(STRATEGIES), enumerate(NETWORKS), (False, True)
    )
]


def train(strategy, network, recompute, optimizer, num_steps=1):
    model = make_model(network)
    for stage in range(STAGES):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // STAGES], str(stage))
    opts = options(lambda: make_strategy(strategy, STAGES, recompute), ACCUMULATION)
    if recompute:
        opts._Popart.set("autoRecomputation", 3)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    batch = make_batches(model, MICRO_BATCH * ACCUMULATION)[0]
    for _ in range(num_steps):
        executor(*batch)
    return executor


@pytest.mark.parametrize(("strategy", "network", "recompute", "optimizer"), CONFIGURATIONS)
def test_planned_is_allocated(strategy, network, recompute, optimizer):
    executor = train(strategy, network, recompute, optimizer)
    planned = json.loads(executor._executable.session.memoryJson())["devices"]
    stages = {stage["device"]: stage for stage in executor.report()["stages"]}
    executor.destroy()
    assert {device["device"] for device in planned} == set(stages)
    for device in planned:
        stage = stages[device["device"]]
        assert device["peak_bytes"] == stage["peak_bytes"] > 0
        if device["off_chip_bytes"] == 0:
            assert device["peak_bytes"] == stage["mapped_bytes"]
        else:
            assert stage["mapped_bytes"] < device["peak_bytes"] <= stage["mapped_bytes"] + device["off_chip_bytes"]
        assert sum(device["by_class"].values()) == device["peak_bytes"]
        assert sum(layer["bytes"] for layer in device["layers"]) == device["peak_bytes"]
        for name, bytes_of_class in device["by_class"].items():
            assert sum(layer["by_class"][name] for layer in device["layers"]) == bytes_of_class


@pytest.mark.parametrize("network", NETWORKS)
def test_steady_steps_take_no_memory_beside_the_plan(network):
    """Kernels have workspaces on the heap: counted, kept, and none is added once the first steps are over."""
    executor = train("1f1b", network, recompute=False, optimizer="adamw", num_steps=4)
    before = executor.report()
    executor(*make_batches(make_model(network), MICRO_BATCH * ACCUMULATION)[0])
    after = executor.report()
    executor.destroy()
    assert after["heap_allocations"] == 0
    assert after["workspace_bytes"] == before["workspace_bytes"]


def test_classes_are_what_they_say():
    executor = train("1f1b", "Transformer", recompute=False, optimizer="adamw")
    parameters = sum(-(-p.numel() * 4 // 64) * 64 for p in make_model("Transformer").parameters())
    report = json.loads(executor._executable.session.memoryJson())["devices"]
    text = executor._executable.session.memoryText()
    executor.destroy()
    total = {name: sum(device["by_class"][name] for device in report) for name in report[0]["by_class"]}
    assert total["weights"] == total["accumulators"] == parameters
    assert total["optimizer_state"] >= 2 * parameters  # and the step count of each
    layers = {layer["layer"]: layer for device in report for layer in device["layers"]}
    assert layers["parts/1/linear1"]["by_class"]["weights"] == (32 * 16 + 32) * 4
    # Scopes do not name the list, as nobody calls it; layers do. What is in no module has its block.
    blocks = {str(stage) for stage in range(STAGES)}
    assert {name.split("/")[0] for name in layers if name not in blocks} <= {
        "parts",
        "(no layer)",
        "(between tensors)",
    }
    assert layers["parts/1/self_attn"]["by_class"]["stash"] > 0
    largest = report[0]["tensors"][0]
    assert largest["bytes"] == max(tensor["bytes"] for tensor in report[0]["tensors"])
    assert any("networks.py:" in tensor["source"] or "test_matrix.py:" in tensor["source"]
               for device in report for tensor in device["tensors"])  # fmt: skip
    assert f"device 0: {report[0]['peak_bytes']} bytes" in text and "stash of 2 micro-batches" in text
