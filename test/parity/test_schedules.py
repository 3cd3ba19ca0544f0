"""Every schedule of a pipeline gives the bits that eager PyTorch gives (see also test_matrix.py)."""

import copy
import re

import networks
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, options, train_equally

pytestmark = pytest.mark.usefixtures("one_thread")


SCHEDULES = ["1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-2"]


def train(network, schedule, num_stages, num_devices, optimizer, accumulation, iterations=1, recompute=False):
    """Stages are dealt round the devices. Returns the text of the plan."""
    torch.manual_seed(0)
    model = networks.NETWORKS[network]()
    reference = copy.deepcopy(model)
    for stage in range(num_stages):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // num_stages], f"stage{stage}")
    stages = [poptorch.Stage(f"stage{stage}").ipu(stage % num_devices) for stage in range(num_stages)]
    opts = options(
        lambda: poptorch.PipelinedExecution(*stages).schedule(schedule).recompute(recompute), accumulation, iterations
    )
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS[optimizer](model.parameters()))
    train_equally(executor, model, reference, OPTIMIZERS[optimizer](reference.parameters()), accumulation, iterations)
    text = executor._executable.session.planText()
    executor.destroy()
    return text


@pytest.mark.parametrize("network", ["Decoder", "Gru", "Tied", "ResidualMlp", "InPlace"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_other_networks_and_several_updates_a_call(network, schedule):
    train(network, schedule, 4, 2, "adamw", accumulation=7, iterations=2)


def test_a_schedule_changes_what_devices_do():
    texts = {schedule: train("Encoder", schedule, 4, 2, "sgd", accumulation=7) for schedule in SCHEDULES}
    charts = {text[text.index("worker 0:") :] for text in texts.values()}
    assert len(charts) == len(SCHEDULES)
    assert " W0.0 " in texts["zero-bubble"] and " W0.0 " not in texts["1f1b"]


def test_an_unknown_schedule_is_refused():
    with pytest.raises(AssertionError, match="zero-bubble"):
        poptorch.PipelinedExecution().schedule("1F1B")


def test_options_show_the_schedule():
    opts = poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution("a", "b").schedule("gpipe"))
    assert 'PipelinedExecution(Stage("a"), Stage("b")).schedule("gpipe")' in repr(opts)
    assert "schedule" not in repr(poptorch.Options())


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
@pytest.mark.parametrize("network", networks.NETWORKS)
def test_recomputation_equals_eager(network, schedule):
    train(network, schedule, 4, 4, "adamw", accumulation=7, iterations=2, recompute=True)


def stash_bytes(text):
    """frames * frame of every stage, in all of its rings."""
    rings = re.findall(r"stage (\d+) worker=\d+ frames=(\d+) frame=(\d+)", text)
    rings += re.findall(r"ring \d+ task=\w(\d+) frames=(\d+) frame=(\d+)", text)
    return [
        sum(int(frames) * int(size) for stage, frames, size in rings if int(stage) == s)
        for s in range(text.count(" worker="))
    ]


@pytest.mark.parametrize("network", ["Encoder", "Decoder"])
def test_recomputation_needs_less_memory(network, configuration):
    if configuration == "recomputation":
        pytest.skip("all trainings recompute")
    kept = stash_bytes(train(network, "1f1b", 4, 4, "sgd", accumulation=7))
    made_again = stash_bytes(train(network, "1f1b", 4, 4, "sgd", accumulation=7, recompute=True))
    assert 4 * made_again[1] < kept[1] and 4 * made_again[2] < kept[2]
    assert made_again[3] == kept[3]  # its backward follows at once


def test_recomputation_is_for_every_strategy(configuration):
    """PopART's own setting."""
    if configuration == "recomputation":
        pytest.skip("all trainings recompute")

    def stash(setting):
        torch.manual_seed(0)
        model = networks.NETWORKS["Encoder"]()
        for stage in range(3):
            poptorch.BeginBlock(model.parts[2 * stage], ipu_id=stage)
        opts = options(poptorch.ShardedExecution, 2)
        if setting is not None:
            opts._Popart.set("autoRecomputation", setting)
        executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
        executor.compile(*model.batch(2 * MICRO_BATCH))
        return sum(stash_bytes(executor._executable.session.planText()))

    assert stash(0) == stash(None) > 2 * stash(3)


class Checkpointed(networks.ResidualMlp):
    def forward(self, x, target):
        for part in self.parts[:-1]:
            x = poptorch.recomputationCheckpoint(part(part(x)))
        x = self.parts[-1](x)
        return x, torch.nn.functional.cross_entropy(x, target)


def test_checkpoints_are_kept(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "Checkpointed", Checkpointed)
    with_checkpoints = stash_bytes(train("Checkpointed", "1f1b", 2, 2, "sgd", accumulation=3, recompute=True))
    monkeypatch.setattr(poptorch, "recomputationCheckpoint", lambda x: x)
    without = stash_bytes(train("Checkpointed", "1f1b", 2, 2, "sgd", accumulation=3, recompute=True))
    assert with_checkpoints[0] > without[0]
