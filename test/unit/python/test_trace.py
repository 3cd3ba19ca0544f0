"""What trace() of a model and PVTI_OPTIONS record: every action of every device, and what it waited for."""

import collections
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import abele
import poptorch
import pytest
import torch

PYTHON = Path(abele.__file__).parents[1]
MICRO_BATCHES = 4


class Net(torch.nn.Module):
    BLOCKS = ("first", "second")

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first = abele.BeginBlock(torch.nn.Linear(8, 8), "first", ipu_id=0)
        self.second = abele.BeginBlock(torch.nn.Linear(8, 2), "second", ipu_id=1)

    def forward(self, x, target):
        out = self.second(torch.relu(self.first(x)))
        return out, torch.nn.functional.mse_loss(out, target)


def training(options=None):
    options = options or abele.Options()
    options.showCompilationProgressBar(False).Training.gradientAccumulation(MICRO_BATCHES)
    net = Net()
    return abele.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))


def batch(rows=MICRO_BATCHES):
    return torch.ones(rows, 8), torch.zeros(rows, 2)


class Trace:
    """groups: name -> track -> spans in order."""

    def __init__(self, path):
        self.events = json.loads(Path(path).read_text())["traceEvents"]
        names = {(e["name"], e["pid"], e["tid"]): e["args"]["name"] for e in self.events if e["name"].endswith("_name")}
        self.groups = collections.defaultdict(lambda: collections.defaultdict(list))
        for event in self.events:
            if event["ph"] == "X":
                group = names.get(("process_name", event["pid"], 0))
                track = names.get(("thread_name", event["pid"], event["tid"]), event["tid"])
                self.groups[group][track].append(event)
        for tracks in self.groups.values():
            for spans in tracks.values():
                spans.sort(key=lambda event: (event["ts"], -event["dur"]))

    def actions(self, group, track):
        return [event for event in self.groups[group][track] if event["cat"] not in ("wait", "host")]


def names(events):
    return collections.Counter(event["name"] for event in events)


def end(event):
    return event["ts"] + event["dur"]


def expected_of(stage, calls=1):
    kinds = [f"{kind}/{stage} [{k}]" for kind in ("fwd", "bwd") for k in range(MICRO_BATCHES)]
    return collections.Counter([*kinds, f"update/{stage} [{MICRO_BATCHES - 1}]"] * calls)


def test_every_action_of_every_call_is_there(tmp_path):
    model = training()
    path = tmp_path / "new" / "step.json"
    model.trace(path, steps=2)
    model(*batch())
    with pytest.raises(json.JSONDecodeError):
        json.loads(path.read_text())  # it is still open
    model(*batch())
    trace = Trace(path)
    model(*batch())
    assert len(Trace(path).events) == len(trace.events)
    measured = trace.groups["training, measured"]
    assert set(measured) == {"host", "device 0: stage 0 (first)", "device 1: stage 1 (second)"}
    for stage, track in enumerate(sorted(set(measured) - {"host"})):
        assert names(trace.actions("training, measured", track)) == expected_of(stage, calls=2)
        for before, after in itertools.pairwise(measured[track]):
            assert after["ts"] >= end(before) - 0.001
    assert names(measured["host"]) == {"call 1": 1, "call 2": 1, "inputs": 2, "step": 2, "results": 2}
    calls = [event for event in measured["host"] if event["name"].startswith("call")]
    for event in (event for track in measured.values() for event in track):
        assert any(call["ts"] - 0.001 <= event["ts"] and end(event) <= end(call) + 0.001 for call in calls)


def parts(trace):
    """group -> name of a span without its micro-batch -> what of the program it is said to be."""
    said = {group: {} for group in ("training, measured", "training, predicted")}
    for group, of in said.items():
        for event in itertools.chain.from_iterable(trace.groups[group].values()):
            if event["cat"] not in ("wait", "host"):
                of.setdefault(event["name"].partition(" ")[0], set()).add(event["args"].get("part"))
    return said


def traced(model, path, *batches):
    model.trace(path, steps=1)
    model(*batches)
    return Trace(path)


def test_spans_say_which_blocks_ran(tmp_path):
    said = parts(traced(training(), tmp_path / "step.json", *batch()))
    expected = {f"{kind}/{stage}": {name} for kind in ("fwd", "bwd", "update") for stage, name in enumerate(Net.BLOCKS)}
    assert said == {"training, measured": expected, "training, predicted": expected}


def test_a_program_from_the_cache_says_it_too(tmp_path):
    for name in ("made.json", "found.json"):
        options = abele.Options().enableExecutableCaching(str(tmp_path / "cache"))
        model = training(options)
        trace = traced(model, tmp_path / name, *batch())
        assert model.report()["from_cache"] == (name == "found.json")
        assert set(trace.groups["training, measured"]) == {
            "host",
            "device 0: stage 0 (first)",
            "device 1: stage 1 (second)",
        }
        assert parts(trace)["training, measured"]["bwd/1"] == {"second"}


class Deep(torch.nn.Module):
    """Layers that nobody marked, or marked without a name."""

    def __init__(self, marked):
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(8)])
        self.head = torch.nn.Linear(8, 2)
        if marked:
            abele.BeginBlock(self.layers[0], ipu_id=0)
            abele.BeginBlock(self.head, ipu_id=1)

    def forward(self, x, target):
        out = self.head(self.layers(x))
        return out, torch.nn.functional.mse_loss(out, target)


@pytest.mark.parametrize("marked", [True, False])
def test_stages_without_names_say_which_modules_ran(tmp_path, marked):
    options = abele.Options().showCompilationProgressBar(False)
    if not marked:
        options.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(2))
    options.Training.gradientAccumulation(MICRO_BATCHES)
    net = Deep(marked)
    model = abele.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))
    measured = traced(model, tmp_path / "step.json", *batch()).groups["training, measured"]
    labels = sorted(set(measured) - {"host"})
    if marked:
        assert labels == ["device 0: stage 0 (layers.0 to layers.7)", "device 1: stage 1 (head)"]
    else:
        assert labels[0].startswith("device 0: stage 0 (layers.0") and "head" in labels[1]


def test_waits_say_for_what(tmp_path):
    model = training()
    model.trace(tmp_path / "step.json", steps=1)
    model(*batch())
    measured = Trace(tmp_path / "step.json").groups["training, measured"]
    of = {event["name"]: event for spans in measured.values() for event in spans if event["cat"] != "wait"}
    waits = [(track, event) for track, spans in measured.items() for event in spans if event["cat"] == "wait"]
    # The last stage has nothing to do before the first one's first micro-batch, whichever way the threads ran.
    assert "wait for fwd/0 [0]" in names(event for track, event in waits if track.startswith("device 1"))
    for _, wait in waits:
        awaited = of[wait["name"].removeprefix("wait for ")]
        assert end(wait) == pytest.approx(end(awaited), abs=0.0021)
        assert wait["args"]["micro_batch"] == awaited["args"]["micro_batch"]
    for k in range(MICRO_BATCHES):
        assert end(of[f"fwd/0 [{k}]"]) <= of[f"fwd/1 [{k}]"]["ts"] + 0.001
        assert end(of[f"bwd/1 [{k}]"]) <= of[f"bwd/0 [{k}]"]["ts"] + 0.001


def test_the_prediction_is_beside_it(tmp_path):
    model = training()
    model.trace(tmp_path / "step.json", steps=2)
    for _ in range(2):
        model(*batch())
    trace = Trace(tmp_path / "step.json")
    predicted = trace.groups["training, predicted"]
    assert set(predicted) == {"device 0", "device 1"}
    for stage in range(2):
        assert names(predicted[f"device {stage}"]) == expected_of(stage)
        track = f"device {stage}: stage {stage} ({Net.BLOCKS[stage]})"
        assert names(trace.actions("training, measured", track)) == expected_of(stage, calls=2)
    step = [event for event in trace.groups["training, measured"]["host"] if event["name"] == "step"][-1]
    assert min(event["ts"] for spans in predicted.values() for event in spans) >= step["ts"] - 0.001


def test_channels_go_into_it_while_it_records(tmp_path):
    model = training()
    channel = poptorch.profiling.Channel("mine")
    options = poptorch.Options().deviceIterations(MICRO_BATCHES)
    loader = poptorch.DataLoader(options, torch.utils.data.TensorDataset(*batch(2 * MICRO_BATCHES)))
    with channel.tracepoint("before"):
        pass
    model.trace(tmp_path / "step.json", steps=2)
    for x, target in loader:
        with channel.tracepoint("during"):
            if model.isCompiled():
                model.copyWeightsToHost()
        model(x, target)
    with channel.tracepoint("after"):
        pass
    spans = names(event for event in Trace(tmp_path / "step.json").events if event["ph"] == "X")
    assert spans["weights to host"] == 1 and spans["mine.during"] == 2 and spans["poptorch.DataLoader.next"] == 2
    assert "mine.before" not in spans and "mine.after" not in spans


def test_tracing_moves_no_number(tmp_path):
    traced, plain = training(), training()
    traced.trace(tmp_path / "step.json", steps=3)
    for _ in range(4):
        assert torch.equal(traced(*batch())[1], plain(*batch())[1])


def test_a_trace_that_ends_early_is_complete(tmp_path):
    model = training()
    model.trace(tmp_path / "first.json", steps=9)
    model(*batch())
    model.trace(tmp_path / "second.json", steps=9)
    model(*batch())
    model.destroy()
    for name in ("first.json", "second.json"):
        host = Trace(tmp_path / name).groups["training, measured"]["host"]
        assert sum(event["name"] == "step" for event in host) == 1


def test_another_shape_has_tracks_of_its_own(tmp_path):
    model = training()
    model.trace(tmp_path / "step.json", steps=2)
    model(*batch())
    model(*batch(2 * MICRO_BATCHES))
    groups = [e["pid"] for e in Trace(tmp_path / "step.json").events if e["name"] == "process_name"]
    assert len(groups) == len(set(groups)) == 1 + 2 * 2


def test_memory_that_comes_and_goes_is_there(tmp_path):
    options = abele.Options()
    options.setExecutionStrategy(abele.SerialPhasedExecution("first", "second"))
    options.offChipMemoryLimit(0).offChipFolder(str(tmp_path))
    options.TensorLocations.setWeightLocation(
        abele.TensorLocationSettings().minElementsForOffChip(0).useOnChipStorage(False)
    )
    net = Net()
    options.showCompilationProgressBar(False)
    model = abele.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))
    model.trace(tmp_path / "step.json", steps=2)
    for _ in range(2):
        model(*batch(1))
    measured = Trace(tmp_path / "step.json").groups["training, measured"]
    memory = [track for track in measured if str(track).endswith(", memory")]
    assert memory and {"fetch", "release"} <= set(names(event for track in memory for event in measured[track]))


def test_what_cannot_be_traced_is_refused(tmp_path):
    model = training()
    with pytest.raises(abele.Error, match="E0708"):
        model.trace(tmp_path / "step.json", steps=0)
    (tmp_path / "file").write_text("")
    with pytest.raises(abele.Error, match="E0712"):
        model.trace(tmp_path / "file" / "step.json")


def test_the_file_of_the_process_has_them_too(tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_trace
model = test_trace.training()
for _ in range(4):
    model(*test_trace.batch())
"""
    options = json.dumps({"enable": "true", "directory": str(tmp_path)})
    env = {**os.environ, "PVTI_OPTIONS": options, "PYTHONPATH": os.pathsep.join([str(PYTHON), *sys.path])}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)
    trace = Trace(next(tmp_path.glob("*.pvti")))
    for stage, track in enumerate(("device 0: stage 0 (first)", "device 1: stage 1 (second)")):
        assert names(trace.actions("training, measured", track)) == expected_of(stage, calls=4)
        assert names(trace.groups["training, predicted"][f"device {stage}"]) == expected_of(stage)
    assert any(event["name"] == "poptorch.trainingModel.modelExecution" for event in trace.events)


def test_the_profiler_of_torch_sees_the_operators_of_all_devices():
    model = training()
    model(*batch())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        losses = [model(*batch())[1] for _ in range(2)]
    model(*batch())  # after it, nobody records
    counts, threads = collections.Counter(), collections.defaultdict(set)
    for event in profile.events():
        counts[event.name] += 1
        threads[event.name].add(event.thread)
    for name in ("abele::fwd/0", "abele::fwd/1", "abele::bwd/0", "abele::bwd/1"):
        assert counts[name] == 2 * MICRO_BATCHES and len(threads[name]) == 1, counts
    assert threads["abele::fwd/0"] != threads["abele::fwd/1"]
    assert counts["aten::addmm"] >= 2 * 2 * MICRO_BATCHES and len(threads["aten::addmm"]) == 2
    reference = training()
    reference(*batch())
    assert all(torch.equal(reference(*batch())[1], loss) for loss in losses)


def test_a_model_compiles_under_the_profiler_of_torch():
    how = {"record_shapes": True, "profile_memory": True, "with_stack": True}
    model, reference = training(), training()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **how) as profile:
        losses = [model(*batch())[1] for _ in range(2)]
        torch.ones(3) + 1
    assert all(torch.equal(reference(*batch())[1], loss) for loss in losses)
    names = {event.name for event in profile.events()}
    assert {"abele::fwd/0", "abele::update/1", "aten::add"} <= names
