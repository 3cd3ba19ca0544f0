"""spec tools.md, PopVision: profiles and traces of real runs, read by the names of the original's analysis library."""

import copy
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import abele
import poptorch
import pva
import pytest
import torch

PYTHON = Path(poptorch.__file__).parents[1]
TILES = 1472
READ = set("format version abele memory devices device peak_bytes execution stages replica name step_ns".split())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = abele.BeginBlock(torch.nn.Linear(8, 16), "first", ipu_id=0)
        self.second = abele.BeginBlock(torch.nn.Linear(16, 4), "second", ipu_id=1)

    def forward(self, x):
        return torch.nn.functional.mse_loss(self.second(torch.relu(self.first(x))), x[:, :4])


def training(folder, replicas=1, cache=None):
    options = abele.Options().showCompilationProgressBar(False).enableProfiling(str(folder)).logCycleCount(True)
    if cache is not None:
        options.enableExecutableCaching(str(cache))
    options.replicationFactor(replicas).Training.gradientAccumulation(2)
    net = Net()
    return abele.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))


def opened(folder):
    (file,) = folder.glob("training/*.pop")
    return pva.openReport(file)


class Names(pva.ProgramVisitor):
    def __init__(self):
        self.seen = []

    def visitOnTileExecute(self, p):
        self.seen.append(p.name)


@pytest.mark.spec("options/2/enableProfiling", names=["Options.enableProfiling", "PoplarExecutor.cycleCount"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_report_has_the_figures_of_the_run(tmp_path, replicas):
    model = training(tmp_path, replicas)
    x = torch.ones(4 * replicas, 8)
    for _ in range(2):
        model(x)
    report = opened(tmp_path)
    assert report.poplarVersion.string == abele.__version__
    assert report.compilation.graph.numComputeSets == 2  # stages
    assert report.compilation.target.numTiles == len(report.compilation.tiles) == 2 * TILES

    sizes = [tile.memory.total.includingGaps for tile in report.compilation.tiles]
    planned = [device["peak_bytes"] for device in model.memoryReport()["devices"]]
    assert [sum(sizes[:TILES]), sum(sizes[TILES:])] == planned
    assert max(sizes[:TILES]) - min(sizes[:TILES]) <= 1

    assert len(report.execution.steps) == 2
    assert [len(step.ipus) for step in report.execution.steps] == [2 * replicas] * 2
    assert {ipu.cycles for ipu in report.execution.steps[-1].ipus} == {model.cycleCount()}
    names = Names()
    report.execution.steps[0].program.accept(names)
    assert names.seen == ["first", "second"] * replicas


@pytest.mark.spec("options/2/enableProfiling", "environment/4", names=["Options.enableProfiling"])
def test_what_a_profile_does_not_have_is_refused_by_name(tmp_path):
    model = training(tmp_path / "early")
    model.compile(torch.ones(4, 8))
    report = opened(tmp_path / "early")
    assert report.execution.steps == [] and report.compilation.target.numTiles == 2 * TILES
    with pytest.raises(poptorch.Error, match="E0705(.|\n)*profile.pop(.|\n)*call the model before") as found:
        report.compilation.graph.numComputeSets  # noqa: B018
    assert found.value.code == "E0705"

    for start in ("compiled", "cached"):
        training(tmp_path / start, cache=tmp_path / "cache")(torch.ones(4, 8))
    report = opened(tmp_path / "cached")
    assert report.compilation.target.numTiles == 2 * TILES and len(report.execution.steps) == 1
    with pytest.raises(poptorch.Error, match="E0705(.|\n)*found in the cache"):
        report.compilation.tiles  # noqa: B018

    class Vertices(pva.ProgramVisitor):
        def visitOnTileExecute(self, p):
            return p.computeset.vertices

    for call in (
        lambda: report.execution.steps[0].program.accept(Vertices()),
        lambda: report.compilation.graph.numVars,
        lambda: report.liveness,
    ):
        with pytest.raises(AttributeError, match="E0711(.|\n)*docs/tracing.md") as found:
            call()
        assert isinstance(found.value, poptorch.Error) and found.value.code == "E0711"
    assert not hasattr(report.compilation.target, "clockFrequency")
    assert copy.deepcopy(report) == report


@pytest.mark.spec("options/2/enableProfiling", names=["Options.enableProfiling"])
def test_damaged_and_foreign_profiles_are_refused(tmp_path):
    training(tmp_path)(torch.ones(4, 8))
    whole = (tmp_path / "training" / "profile.pop").read_text()
    file = tmp_path / "other.pop"

    def refused(text):
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(poptorch.Error) as found:
            pva.openReport(str(file))
        assert found.value.code == "E0501" and str(file) in str(found.value)
        return str(found.value)

    for end in range(0, len(whole) - 1, 97):
        refused(whole[:end])
    for text in (b"\xff\xfe", b"SQLite format 3\0", "[" * 100_000, "[]", "null", '{"format": 1}', "1" + "0" * 5000):
        refused(text)
    assert "of version 2; this reads version 1" in refused(whole.replace('"version": 1', '"version": 2'))
    assert "format chrome" in refused(whole.replace("abele-profile", "chrome"))

    def places(value, way=()):
        """The way to each value that is read."""
        for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
            if key in READ or isinstance(key, int):
                yield (*way, key)
                yield from places(value[key], (*way, key))

    ways = list(places(json.loads(whole)))
    assert {key for way in ways for key in way if isinstance(key, str)} == READ
    for way in ways:
        for wrong in (None, -1.5, float("nan"), True, {}):
            damaged = json.loads(whole)
            within = damaged
            for key in way[:-1]:
                within = within[key]
            within[way[-1]] = wrong
            if wrong is None and isinstance(within, dict):
                del within[way[-1]]
            refused(json.dumps(damaged))
    with pytest.raises(poptorch.Error) as found:
        pva.openReport(tmp_path / "none.pop")
    assert found.value.code == "E0712" and "No such file" in str(found.value)


def traced(program, folder):
    """The file of a process that runs this, and the number of the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={
            **os.environ,
            "PYTHONPATH": str(PYTHON),
            "PVTI_OPTIONS": json.dumps({"enable": "true", "directory": str(folder)}),
        },
    )
    process.wait(timeout=300)
    (file,) = folder.glob("*.pvti")
    return file, process.pid


def every_event(events):
    for event in events:
        yield event
        yield from every_event(event.children())


@pytest.mark.spec("environment/5", "environment/3/PVTI_OPTIONS", names=["variables.PVTI_OPTIONS"])
def test_a_trace_is_walked_by_process_thread_and_event(tmp_path):
    file, pid = traced(
        """
        import libpvti, poptorch, torch
        net = torch.nn.Linear(2, 2)
        options = poptorch.Options().showCompilationProgressBar(False)
        model = poptorch.inferenceModel(net, options)
        model.compile(torch.ones(1, 2))
        channel = libpvti.createTraceChannel("mine")
        libpvti.Graph("loss").addSeries("training").add(1)
        libpvti.HeatmapDouble("spread", [0, 1]).add([0.5])
        for label in ("outer", "again"):
            with libpvti.Tracepoint(channel, label):
                with libpvti.Tracepoint(channel, "inner"):
                    libpvti.Tracepoint.event(channel, "now")
                model(torch.ones(1, 2))
        """,
        tmp_path,
    )
    trace = pva.openTrace(file)
    process = trace.processes[0]
    assert process.pid == pid and trace.process(pid) is process
    (thread,) = process.threads
    assert process.thread(thread.tid) is thread
    outer, again = (event for event in thread.events if event.channel == "mine")
    assert (outer.label, again.label) == ("outer", "again")
    inner, execution = outer.children()
    assert (inner.label, inner.channel) == ("inner", "mine")
    assert execution.label == "poptorch.inferenceModel.modelExecution"
    (now,) = inner.children()
    assert (now.label, now.duration, now.children()) == ("now", 0, [])
    assert 0 < inner.duration + execution.duration <= outer.duration
    assert outer.timestamp <= inner.timestamp <= now.timestamp <= execution.timestamp < again.timestamp
    labels = [event.label for event in every_event(thread.events)]
    assert "poptorch._poplar_executor.PoplarExecutor.compile" in labels
    assert not {"loss", "spread"} & set(labels)

    # The devices' actions, in a group of their own.
    (measured,) = (each for each in trace.processes if each.name == "inference, measured")
    host, device = measured.threads
    assert [event.label for event in host.events] == ["call 1", "call 2"]
    assert [event.label for event in host.events[0].children()] == ["inputs", "step", "results"]
    assert device.name.startswith("device 0") and [each.channel for each in device.events].count("forward") == 2
    for call, unknown in ((trace.process, 1), (process.thread, -1)):
        with pytest.raises(poptorch.Error, match=f"E0708(.|\n)*{pid}") as found:
            call(unknown)
        assert found.value.code == "E0708"


@pytest.mark.spec("environment/5", names=["variables.PVTI_OPTIONS"])
def test_a_trace_that_a_crash_left_open_has_what_there_is(tmp_path):
    file, pid = traced(
        """
        import libpvti, os
        channel = libpvti.createTraceChannel("c")
        for number in range(3000):
            libpvti.Tracepoint.event(channel, str(number))
        os._exit(1)
        """,
        tmp_path,
    )
    text = file.read_text()
    assert not text.endswith("]}\n")
    events = pva.openTrace(file).process(pid).threads[0].events
    assert len(events) > 500 and [event.label for event in events] == [str(number) for number in range(len(events))]

    # Wherever it ends: all lines that are whole, or no trace yet.
    for end in (*range(0, 300, 3), *range(len(text) - 120, len(text), 2)):
        file.write_text(text[:end])
        try:
            found = [each for process in pva.openTrace(file).processes for each in process.threads]
        except poptorch.Error as error:
            assert error.code == "E0501" and text[:end].count("\n") == 0
        else:
            written = sum('"cat"' in line for line in text[:end].splitlines()[:-1])
            assert written <= sum(len(thread.events) for thread in found) <= written + 1


def test_events_nest_by_their_times(tmp_path):
    def span(label, begin_ns, end_ns, thread):
        # As the file has times: microseconds, since long before.
        times = {"ts": begin_ns / 1000, "dur": (end_ns - begin_ns) / 1000}
        return {"name": label, "cat": "c", "ph": "X", "pid": 1, "tid": thread, **times}

    start = 19_674_906_891_079
    spans = [span("b", 50, 90, 0), span("a in b", 60, 90, 0), span("c", 90, 95, 0), span("over c", 94, 99, 0)]
    for number in range(500):  # ends that are equal, though their sums of microseconds are not
        begin, end = start + 1013 * number, start + 1013 * number + 7919
        spans += [span("inner", begin + 7 * number % 7919, end, number + 1), span("outer", begin, end, number + 1)]
    assert any(a["ts"] + a["dur"] > b["ts"] + b["dur"] for a, b in zip(spans[4::2], spans[5::2], strict=True))
    (tmp_path / "t.pvti").write_text(json.dumps({"traceEvents": spans}))
    (process,) = pva.openTrace(tmp_path / "t.pvti").processes
    by_hand, *others = process.threads
    assert [event.label for event in by_hand.events] == ["b", "c", "over c"]
    assert [[each.label for each in event.children()] for event in by_hand.events] == [["a in b"], [], []]
    for thread in others[1:]:
        (outer,) = thread.events
        assert outer.label == "outer" and [each.label for each in outer.children()] == ["inner"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"SQLite format 3\0",
        b"\xff",
        b"[]",
        b"{}",
        b'{"traceEvents": {}}',
        b'{"traceEvents": [1]}',
        b'{"traceEvents": [{"name": "a", "ph": "X", "pid": "1", "tid": 1}]}',
        b'{"traceEvents": [{"name": "a", "cat": "c", "ph": "X", "pid": 1, "tid": 1, "ts": 1}]}',
        b'{"traceEvents": [{"name": "a", "cat": "c", "ph": "X", "pid": 1, "tid": 1, "ts": 1e999, "dur": 1}]}',
        b'{"traceEvents": [{"name": "a", "cat": "c", "ph": "X", "pid": 1, "tid": 1, "ts": 1, "dur": -1}]}',
        b'{"traceEvents": [{"name": "a", "cat": "c", "ph": "X", "pid": 1, "tid": 1, "dur": 1, "ts": 1%s}]}'
        % (b"0" * 400),
        b'{"traceEvents": [{"name": "thread_name", "ph": "M", "pid": 1, "tid": 1}]}',
    ],
)
def test_damaged_and_foreign_traces_are_refused(tmp_path, text):
    file = tmp_path / "t.pvti"
    file.write_bytes(text)
    with pytest.raises(poptorch.Error) as found:
        pva.openTrace(str(file))
    assert found.value.code == "E0501" and str(file) in str(found.value) and "PVTI_OPTIONS" in str(found.value)
