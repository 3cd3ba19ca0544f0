"""Micro-batches side by side (abele.lanes) give the bits that eager PyTorch gives, one by one."""

import collections
import copy
import functools
import re
from pathlib import Path

import networks
import poptorch
import pytest
import replicated
import torch
from against_eager import MICRO_BATCH, OPTIMIZERS, eager, options, train_equally
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

ACCUMULATION = 4

# docs/status.md, "Nothing silent": products of small matrices on AMD.
other_on_amd = pytest.mark.xfail(
    "AuthenticAMD" in Path("/proc/cpuinfo").read_text(), reason="other products of MKL on AMD", strict=True
)


class Cells(nn.Module):
    """Residual cells; rows of the LSTM's steps are apart from each other in memory."""

    def __init__(self):
        super().__init__()
        cell = lambda: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))  # noqa: E731
        self.parts = nn.ModuleList([nn.Linear(16, 16), cell(), nn.LSTM(16, 16), cell(), cell(), nn.Linear(16, 3)])

    def forward(self, x, y):
        x = self.parts[0](x)
        for part in self.parts[1:-1]:
            x = x + (part(x.unsqueeze(1))[0].squeeze(1) if isinstance(part, nn.LSTM) else part(x))
        out = self.parts[-1](x)
        return out, nn.functional.cross_entropy(out, y)

    def batch(self, rows):
        return torch.randn(rows, 16), torch.randint(0, 3, (rows,))


NETWORKS = {**networks.NETWORKS, "Cells": Cells}


@pytest.fixture
def debug_log():
    poptorch.setLogLevel("DEBUG")
    yield
    poptorch.setLogLevel("WARN")


def lanes_of(executor):
    found = re.search(r"^executable .* lanes=(\d+)", executor._executable.session.executableText())
    return int(found[1]) if found else 1


def with_lanes(opts, count):
    opts._Popart.set("abele.lanes", count)
    return opts


@pytest.mark.parametrize("lanes", [2, 3, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_training_equals_eager(network, lanes):
    torch.manual_seed(0)
    model = NETWORKS[network]()
    reference = copy.deepcopy(model)
    opts = with_lanes(options(poptorch.PipelinedExecution, ACCUMULATION, 2), lanes)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    train_equally(executor, model, reference, OPTIMIZERS["adamw"](reference.parameters()), ACCUMULATION, 2)
    assert network != "Cells" or lanes_of(executor) == {2: 2, 3: 2, 4: 4}[lanes]
    executor.destroy()


@pytest.mark.parametrize("network", ["Cells", "Encoder", "Gru"])
def test_a_pipeline_equals_eager(network):
    torch.manual_seed(0)
    model = NETWORKS[network]()
    reference = copy.deepcopy(model)
    for stage in range(3):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // 3], f"stage{stage}")
    stages = [poptorch.Stage(f"stage{stage}").ipu(stage) for stage in range(3)]
    opts = with_lanes(options(lambda: poptorch.PipelinedExecution(*stages), 12), 2)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    train_equally(executor, model, reference, OPTIMIZERS["adamw"](reference.parameters()), 12, 1)
    assert network != "Cells" or lanes_of(executor) == 2
    executor.destroy()


@pytest.mark.parametrize("training", [False, True])
def test_devices_that_share_no_memory_equal_eager(training):
    torch.manual_seed(0)
    model = Cells()
    reference = copy.deepcopy(model)
    for stage in range(3):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // 3], f"stage{stage}", ipu_id=stage)
    if training:
        opts = with_lanes(options(lambda: poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu), 12), 2)
        opts._Popart.set("abele.separateMemory", True)
        executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
        train_equally(executor, model, reference, OPTIMIZERS["adamw"](reference.parameters()), 12, 1)
    else:
        opts = with_lanes(poptorch.Options().deviceIterations(6).outputMode(poptorch.OutputMode.All), 2)
        opts.autoRoundNumIPUs(True)._Popart.set("abele.separateMemory", True)
        executor = poptorch.inferenceModel(model.eval(), opts)
        x, y = reference.batch(6 * MICRO_BATCH)
        out, losses = executor(x, y)
        with torch.no_grad():
            parts = [reference(*rows) for rows in zip(x.split(MICRO_BATCH), y.split(MICRO_BATCH), strict=True)]
        assert torch.equal(out, torch.cat([part[0] for part in parts]))
        assert torch.equal(losses, torch.stack([part[1] for part in parts]))
    assert lanes_of(executor) == 2
    executor.destroy()


class Gradients(nn.Module):
    """Layers whose gradients of weights and biases one call makes for all micro-batches, if a kernel fits the sizes."""

    def __init__(self, width, hidden):
        super().__init__()
        self.first = nn.LayerNorm(width)  # its input needs no gradient
        layers = lambda: (nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))  # noqa: E731
        self.cells = nn.ModuleList(nn.Sequential(nn.LayerNorm(width, bias=cell > 0), *layers()) for cell in range(3))
        self.scale = nn.Parameter(torch.randn(width))
        self.head = nn.Linear(width, 3, bias=False)

    def forward(self, x, y):
        x = self.first(x) * self.scale
        for cell in self.cells:
            x = x + cell(x)
        out = self.head(x).mean(1)
        return out, nn.functional.cross_entropy(out, y)

    def batch(self, rows):
        return torch.randn(rows, 16, len(self.scale)), torch.randint(0, 3, (rows,))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("lanes", [2, 4])
@pytest.mark.parametrize(("width", "hidden"), [(128, 64), (100, 33), (32, 16), (5, 1)])
def test_gradients_of_weights_equal_eager(width, hidden, lanes, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = Gradients(width, hidden)
    reference = copy.deepcopy(model)
    opts = with_lanes(options(poptorch.PipelinedExecution, ACCUMULATION, 2), lanes)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    train_equally(executor, model, reference, OPTIMIZERS["sgd"](reference.parameters()), ACCUMULATION, 2)
    assert lanes_of(executor) == lanes


SCHEDULES = ("sharded", "1f1b", "gpipe", "interleaved", "zero-bubble", "zero-bubble-2")
STAGES, OF_AN_UPDATE = 3, 6


def strategy_of(schedule, recompute):
    """Three stages on as many devices; dealt round two where there are several on each."""
    if schedule == "sharded":
        return poptorch.ShardedExecution("0", "1", "2")
    stages = [poptorch.Stage(str(s)).ipu(s % 2 if schedule == "interleaved" else s) for s in range(STAGES)]
    return poptorch.PipelinedExecution(*stages).schedule(schedule).recompute(recompute)


@functools.cache
def expected_training(replicas):
    """Outputs, losses and weights of two updates in plain PyTorch."""
    torch.manual_seed(0)
    model = Cells()
    theirs = OPTIMIZERS["adamw"](model.parameters())
    batch = batch_of(model, replicas)
    if replicas == 1:
        return [*eager(model, theirs, batch, OF_AN_UPDATE), *model.state_dict().values()]
    results = replicated.step(replicated.copies(model, replicas), theirs, batch, MICRO_BATCH, OF_AN_UPDATE)
    ordered = [result for of_replicas in zip(*results, strict=True) for result in of_replicas]
    outputs, losses = zip(*ordered, strict=True)
    return [torch.cat(outputs), torch.stack(losses), *model.state_dict().values()]


def batch_of(model, replicas):
    torch.manual_seed(1)
    return model.batch(MICRO_BATCH * OF_AN_UPDATE * 2 * replicas)


@pytest.mark.parametrize("lanes", [0, 2, 3])
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_equals_eager(schedule, recompute, replicas, lanes):
    torch.manual_seed(0)
    model = Cells()
    for stage in range(STAGES):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // STAGES], str(stage))
    opts = with_lanes(options(lambda: strategy_of(schedule, recompute), OF_AN_UPDATE, 2), lanes)
    opts.replicationFactor(replicas)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["adamw"](model.parameters()))
    output, loss = executor(*batch_of(model, replicas))
    ours = [output, loss.reshape(-1), *model.state_dict().values()]
    for found, expected in zip(ours, expected_training(replicas), strict=True):
        assert torch.equal(found, expected)
    assert lanes_of(executor) == lanes or not lanes
    executor.destroy()


@pytest.mark.parametrize("mode", ["Sum", "Final", "EveryN", "All"])
@pytest.mark.parametrize("training", [False, True])
def test_results_and_anchors_of_a_pipeline_do_not_depend_on_lanes(training, mode):
    found = []
    for lanes in (1, 2, 4, 0):
        torch.manual_seed(0)
        model = Cells()
        poptorch.BeginBlock(model.parts[3], "second", ipu_id=1)
        opts = with_lanes(poptorch.Options().deviceIterations(2 if training else 8), lanes)
        opts.outputMode(getattr(poptorch.OutputMode, mode), *([2] if mode == "EveryN" else []))
        if training:
            opts.Training.gradientAccumulation(4)
        opts.anchorTensor("inside", "Gradient___parts.0.weight" if training else "input", poptorch.OutputMode.All)
        torch.manual_seed(1)
        batch = model.batch(16)
        if training:
            executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
        else:
            executor = poptorch.inferenceModel(model.eval(), opts)
        executor.compile(*batch)
        results = [*executor(*batch), executor.getAnchoredTensor("inside"), *model.state_dict().values()]
        assert lanes_of(executor) == lanes or not lanes
        found.append(results)
        executor.destroy()
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def layers(width):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(8))).eval()


@pytest.mark.parametrize(("width", "rows", "saves"), [(32, 4, True), (512, 512, False)])
def test_pipelines_have_them_where_they_are_predicted_to_save(width, rows, saves, capfd, debug_log):
    """Small layers: most of their time is that of the calls. Large ones: none. The log says why."""
    model, x = layers(width), torch.randn(8 * rows, width)
    poptorch.BeginBlock(model[4], "second", ipu_id=1)
    executor = poptorch.inferenceModel(model, poptorch.Options().deviceIterations(8))
    found = executor(x)
    with torch.no_grad():
        assert torch.equal(found, torch.cat([model(part) for part in x.split(rows)]))
    assert (lanes_of(executor) > 1) == saves
    executor.destroy()
    reason = re.search(r"micro-batches: (.*)", capfd.readouterr().err)[1]
    assert "of 8 side by side are predicted to take" in reason
    assert reason.startswith("no number is predicted to save much") != saves


def test_what_is_measured_has_them():
    """devices("measured") tries the programs that would run."""
    opts = poptorch.Options().deviceIterations(8)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoSplit).devices("measured"))
    executor = poptorch.inferenceModel(layers(32), opts)
    executor(torch.randn(8 * 4, 32))
    assert lanes_of(executor) > 1
    executor.destroy()


class Rows(nn.Module):
    """Operands that lie in many ways: rows of one micro-batch or of none, views, transposed ones, two results."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.randn(1, width))
        self.table = nn.Parameter(torch.randn(width, width))

    def forward(self, x):
        h = torch.tanh(self.inner(x)) * self.scale + x[:, :1]
        mixed = (h.t() @ h) @ self.table.exp()
        return h - h.mean(0, keepdim=True) + mixed[:1], torch.softmax(h.flip(0), -1).sum(0), h.max()


@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("width", [5, 16, 64])
@pytest.mark.parametrize("lanes", [0, 2, 6])
def test_a_prediction_equals_eager(rows, width, lanes, request):
    if (rows, width) == (3, 5):
        request.applymarker(other_on_amd)
    torch.manual_seed(0)
    model = Rows(width).eval()
    opts = with_lanes(poptorch.Options().deviceIterations(6), lanes)
    executor = poptorch.inferenceModel(model, opts)
    for strided in (False, True):
        x = torch.randn(6 * rows, 2 * width)[:, :width] if strided else torch.randn(6 * rows, width)
        found = executor(x)
        with torch.no_grad():
            parts = [model(part.contiguous()) for part in x.split(rows)]
        expected = (
            torch.cat([p[0] for p in parts]),
            torch.cat([p[1] for p in parts]),
            torch.stack([p[2] for p in parts]),
        )
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours.flatten(), theirs.flatten())
    assert lanes_of(executor) == (lanes or 6)
    executor.destroy()


@pytest.mark.parametrize("mode", ["Sum", "Final", "All"])
def test_results_are_those_of_micro_batches(mode):
    torch.manual_seed(0)
    model = nn.Linear(16, 4).eval()
    x = torch.randn(8 * 4, 16)
    outputs = []
    for lanes in (1, 4):
        opts = with_lanes(poptorch.Options().deviceIterations(4).outputMode(getattr(poptorch.OutputMode, mode)), lanes)
        executor = poptorch.inferenceModel(model, opts)
        outputs.append(executor(x))
        assert lanes_of(executor) == lanes
        executor.destroy()
    assert torch.equal(*outputs)


def test_programs_whose_micro_batches_depend_on_each_other_have_none(capfd):
    for model in (nn.Sequential(nn.Linear(8, 8), nn.Dropout()), nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))):
        opts = with_lanes(poptorch.Options().deviceIterations(2), 2)
        executor = poptorch.inferenceModel(model.train(), opts)
        executor(torch.randn(8, 8))
        assert lanes_of(executor) == 1
        executor.destroy()
    shown = capfd.readouterr().err
    assert "random numbers are drawn" in shown and "every micro-batch writes" in shown


def test_lanes_are_off_without_fusion_and_on_demand():
    for opts in (poptorch.Options().fusion("off"), with_lanes(poptorch.Options(), 1)):
        executor = poptorch.inferenceModel(nn.Linear(16, 4).eval(), opts.deviceIterations(4))
        executor(torch.randn(8 * 4, 16))
        assert lanes_of(executor) == 1
        executor.destroy()


def test_a_saved_program_keeps_them(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    x = torch.randn(8 * 4, 16)
    executor = poptorch.inferenceModel(model, with_lanes(poptorch.Options().deviceIterations(4), 4))
    executor.compileAndExport(str(tmp_path / "program.poptorch"), x)
    loaded = poptorch.load(str(tmp_path / "program.poptorch"))
    with torch.no_grad():
        assert torch.equal(loaded(x), torch.cat([model(part) for part in x.split(8)]))
    assert lanes_of(loaded) == 4


def test_many_instructions_are_one_for_all():
    """Counts: instructions of a training that stand for one a micro-batch."""
    model = Cells()
    opts = with_lanes(options(poptorch.PipelinedExecution, ACCUMULATION), ACCUMULATION)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    executor(*model.batch(MICRO_BATCH * ACCUMULATION))
    text = executor._executable.session.executableText()
    executor.destroy()
    parts = len(re.findall(r" lane=1\b", text))
    assert text.count(f" joins={ACCUMULATION}") > parts / 3


def calls_of(model, lanes):
    """How often a step calls each operator, as torch's profiler sees it."""
    opts = with_lanes(options(poptorch.PipelinedExecution, ACCUMULATION), lanes)
    executor = poptorch.trainingModel(model, opts, OPTIMIZERS["sgd"](model.parameters()))
    for _ in range(3):  # the first one tries
        executor(*model.batch(MICRO_BATCH * ACCUMULATION))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        executor(*model.batch(MICRO_BATCH * ACCUMULATION))
    executor.destroy()
    return collections.Counter(event.name for event in profile.events())


@other_on_amd
def test_sums_take_the_gradients_of_all_at_once():
    """Counts: one call for all micro-batches that adds up, and one for the gradients that it adds."""
    torch.manual_seed(0)
    apart, together = (calls_of(Gradients(128, 64), lanes) for lanes in (1, ACCUMULATION))
    once = ["abele::accumulate", "aten::sum.dim_IntList"]
    # Kernels of ours, for processors that have these vectors.
    has_kernels = torch.backends.cpu.get_cpu_capability() == "AVX512"
    once += ["abele::accumulate_product"] if has_kernels else []
    for name in once:
        assert apart[name] == ACCUMULATION * together[name] > 0, name
    if has_kernels:  # rows for the gradient of the input, which the first has none of; weights' and biases' beside it
        norms = apart["aten::native_layer_norm_backward"] // ACCUMULATION
        assert norms == 4 and together["aten::native_layer_norm_backward"] == 2 * norms - 1
