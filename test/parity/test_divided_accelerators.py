"""Blocks over several accelerators (tensorParallel), the simulated ones: the bits of eager PyTorch on one of them, and
no missing wait between streams."""

import abele
import pytest
import torch
from against_eager import MICRO_BATCH
from on_accelerator import judged, on_device, require_equals_eager
from several_devices import devices_of, make, options_of, require_bits

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.own_process]

ACCUMULATION, STEPS = 4, 3


@pytest.fixture(autouse=True)
def _findings():
    yield from judged(delays=1)


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def train(network, stages, devices, opts):
    """Returns: the devices of the model that did something."""
    model, _ = make(network, stages)
    reference = on_device(model)
    executor = abele.trainingModel(model, opts.deviceType(devices), make_optimizer(model))
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * ACCUMULATION) for _ in range(STEPS)]
    ours = [executor(*batch) for batch in batches]
    used = devices_of(executor)
    executor.copyWeightsToHost()
    require_equals_eager(model, ours, reference, make_optimizer(reference), batches, ACCUMULATION)
    executor.destroy()
    return used


@pytest.mark.parametrize("network", ["Mlp", "Gpt", "Bert", "ConvNet"])
@pytest.mark.parametrize(
    ("group", "stages", "devices", "strategy", "graphs"),
    [
        (2, 1, "simulated", "1f1b", False),
        (3, 1, "simulated", "gpipe", True),
        (2, 2, "simulated", "1f1b", True),
        (2, 2, "simulated:0,simulated:1", "sharded", False),
        (2, 1, "simulated:0", "1f1b", True),
    ],
)
def test_trains_as_eager(network, group, stages, devices, strategy, graphs):
    opts = options_of(group, strategy, ACCUMULATION).deviceGraphs(graphs)
    assert len(train(network, stages, devices, opts)) > stages


@pytest.mark.parametrize("devices", ["simulated", "simulated:0"])
@pytest.mark.parametrize("network", ["Gpt", "ConvNet"])
def test_phases(network, devices):
    opts = options_of(2, accumulation=ACCUMULATION)
    opts.setExecutionStrategy(abele.SerialPhasedExecution("0", "1", "2"))
    assert len(train(network, 3, devices, opts)) > 1


def test_no_part_runs_if_all_trials_fail(monkeypatch):
    monkeypatch.setenv("ABELE_SHARD_TRIALS", "fail")
    train("Gpt", 1, "simulated", options_of(2, accumulation=ACCUMULATION))


@pytest.mark.parametrize("network", ["Mlp", "Gpt"])
def test_predicts_as_eager(network):
    model, _ = make(network, 1)
    reference = on_device(model.eval())
    executor = abele.inferenceModel(model, options_of(2, iterations=3).deviceType("simulated"))
    batch = model.batch(3 * MICRO_BATCH)
    ours, _ = executor(*batch)
    with torch.no_grad():
        theirs = [
            reference(*(each.to("simulated:0") for each in rows))[0].cpu()
            for rows in zip(*(tensor.split(MICRO_BATCH) for tensor in batch), strict=True)
        ]
    require_bits(ours, torch.cat(theirs), "output")
    assert len(devices_of(executor)) == 2
    executor.destroy()


def test_devices_of_several_kinds_are_refused():
    model, _ = make("Mlp", 1)
    executor = abele.inferenceModel(model.eval(), options_of(2).deviceType("simulated:0,cpu"))
    with pytest.raises(abele.Error, match=r"E0711.*tensorParallel with deviceType simulated:0,cpu"):
        executor(*model.batch(MICRO_BATCH))
