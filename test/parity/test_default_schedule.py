"""The schedule that is taken when nobody chose one: where another than 1F1B is, bits and memory are as before."""

import copy
import os

import abele
import poptorch
import pytest
import torch
from against_eager import MICRO_BATCH, options, train_equally

pytestmark = pytest.mark.usefixtures("one_thread")


ACCUMULATION = 6
SHARES_A_CORE = len(os.sched_getaffinity(0)) < 2


class WideThenDeep(torch.nn.Module):
    """An embedding that makes the first device the fullest one, then layers whose weight gradients can wait."""

    def __init__(self, classes=7, trained=True):
        super().__init__()
        self.embedding = torch.nn.Embedding(4000, 64)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(10))
        self.head = torch.nn.Linear(64, classes)
        for layer in self.layers:
            layer.requires_grad_(trained)

    def batch(self, n):
        return torch.randint(4000, (n, 128)), torch.randint(7, (n,))

    def forward(self, x, target):
        x = self.embedding(x)
        for layer in self.layers:
            x = torch.relu(layer(x)) + x
        output = self.head(x.mean(1))
        return output, torch.nn.functional.cross_entropy(output, target)


def compiled(strategy=poptorch.PipelinedExecution, change=lambda opts: None, model=None, **arguments):
    torch.manual_seed(0)
    model = model or WideThenDeep(**arguments)
    poptorch.BeginBlock(model.layers[5], "second", ipu_id=1)
    opts = options(strategy, ACCUMULATION)
    change(opts)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    torch.manual_seed(1)
    executor.compile(*model.batch(MICRO_BATCH * ACCUMULATION))
    return executor


def asked(schedule):
    return lambda: poptorch.PipelinedExecution().schedule(schedule)


def peaks(executor):
    return [stage["peak_bytes"] for stage in executor.report()["stages"]]


@pytest.mark.skipif(SHARES_A_CORE, reason="devices that share a core do not wait for each other")
def test_what_is_predicted_to_be_faster_is_taken_and_gives_the_same_bits():
    torch.manual_seed(0)
    model = WideThenDeep()
    reference = copy.deepcopy(model)
    executor = compiled(model=model)
    report = executor.report()
    assert report["schedule"] == "zero-bubble" and "zero-bubble is predicted to take" in report["schedule_reason"]
    assert executor._executable.session.planText().startswith("plan zero-bubble ")
    assert f"schedule zero-bubble: {report['schedule_reason']}" in abele.explain(executor)
    theirs = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.9)
    train_equally(executor, model, reference, theirs, ACCUMULATION, steps=3)
    executor.destroy()


def test_no_device_needs_more_than_the_fullest_one_under_1f1b():
    default, plain = compiled(), compiled(asked("1f1b"))
    fullest = max(peaks(plain))
    assert max(peaks(default)) <= fullest + fullest // 64


def test_a_limit_is_what_may_be_used():
    needed = max(peaks(compiled(asked("1f1b"))))
    for limit in (needed, 2 * needed, 100 * needed):
        executor = compiled(change=lambda opts, limit=limit: opts.deviceMemoryLimit(limit))
        assert max(peaks(executor)) <= limit


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_a_choice_is_obeyed(schedule):
    report = compiled(asked(schedule)).report()
    assert report["schedule"] == schedule and report["schedule_reason"] == ""


def test_the_same_program_gets_the_same_schedule():
    reports = [compiled().report() for _ in range(3)]
    assert len({(report["schedule"], report["schedule_reason"]) for report in reports}) == 1


def test_the_cache_knows_what_was_chosen(tmp_path):
    cached = lambda opts: opts.enableExecutableCaching(str(tmp_path))  # noqa: E731
    first, second = compiled(change=cached).report(), compiled(change=cached).report()
    assert second["from_cache"] and not first["from_cache"]
    assert (second["schedule"], second["schedule_reason"]) == (first["schedule"], first["schedule_reason"])
    other = compiled(asked("1f1b"), change=cached).report()
    assert not other["from_cache"] and other["schedule"] == "1f1b"


def test_one_device_and_frozen_layers_stay_with_1f1b():
    one = lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)  # noqa: E731
    frozen = compiled(trained=False)
    assert frozen.report()["schedule"] in ("1f1b", "zero-bubble")
    assert max(peaks(frozen)) <= max(peaks(compiled(asked("1f1b"), trained=False))) * 65 // 64
    torch.manual_seed(0)
    model = WideThenDeep()
    executor = poptorch.trainingModel(model, options(one, ACCUMULATION), torch.optim.SGD(model.parameters(), lr=0.05))
    executor.compile(*model.batch(MICRO_BATCH * ACCUMULATION))
    report = executor.report()
    assert report["schedule"] == "1f1b" and report["schedule_reason"] == "one device"


def test_recomputation_is_part_of_the_comparison():
    for use in (True, "fit"):
        strategy = lambda use=use: poptorch.PipelinedExecution().recompute(use)  # noqa: E731
        limit = max(peaks(compiled(asked("1f1b"))))
        change = lambda opts, limit=limit: opts.deviceMemoryLimit(limit)  # noqa: E731
        executor = compiled(strategy, change=change)
        assert executor.report()["schedule_reason"] and max(peaks(executor)) <= limit


def test_a_model_simulates_under_what_it_got():
    options_ = abele.Options()
    options_.Training.gradientAccumulation(ACCUMULATION)
    model = WideThenDeep()
    poptorch.BeginBlock(model.layers[5], "second", ipu_id=1)
    executor = abele.trainingModel(model, options_, torch.optim.SGD(model.parameters(), lr=0.05))
    executor.compile(*model.batch(MICRO_BATCH * ACCUMULATION))
    assert executor.simulate()["schedule"] == executor.report()["schedule"]
