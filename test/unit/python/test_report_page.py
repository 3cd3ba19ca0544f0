"""model.report("report.html") and abele report: one page that needs no network, with the figures of the run."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import abele
import pytest
import torch
from abele._native import core

ROOT = Path(__file__).resolve().parents[3]
TOOL = (ROOT / os.environ.get("ABELE_BUILD_DIR", "build/dev")).resolve() / "tools" / "abele-report"
TEMPLATE = ROOT / "src/report/report_page.html"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.wide, self.last = torch.nn.Linear(8, 256), torch.nn.Linear(256, 256), torch.nn.Linear(256, 4)

    def forward(self, x, target):
        with abele.Block("first", ipu_id=0):
            hidden = self.first(x).relu()
        with abele.Block("wide </script>", ipu_id=1):
            hidden = self.wide(self.wide(hidden).relu()).relu()
        with abele.Block("last", ipu_id=2):
            return torch.nn.functional.mse_loss(self.last(hidden), target)


@pytest.fixture(scope="module")
def model():
    options = abele.Options()
    options.Training.gradientAccumulation(6)
    net = Net()
    model = abele.trainingModel(net, options, optimizer=torch.optim.Adam(net.parameters()))
    for _ in range(2):
        model(torch.randn(24, 8), torch.randn(24, 4))
    yield model
    model.destroy()


def write_page(page, trace):
    core().writeTracePage(os.fspath(page), os.fspath(trace))


def data_of(page):
    text = page.read_text()
    assert text.count("</script>") == TEMPLATE.read_text().count("</script>")
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', text, re.S)[1])


def test_the_page_of_a_model(model, tmp_path):
    figures = model.report(tmp_path / "made" / "report.html")
    assert figures == model.report() and figures["stages"]
    data = data_of(tmp_path / "made" / "report.html")
    assert data["title"] == "Net, training"
    groups = {track["group"] for track in data["tracks"]}
    assert {"training, measured", "training, predicted"} <= groups
    measured = [track for track in data["tracks"] if track["group"] == "training, measured"]
    assert [track["label"].split(":")[0] for track in measured] == ["host", "device 0", "device 1", "device 2"]
    for track in data["tracks"]:
        assert track["begin"] == sorted(track["begin"]) and min(track["begin"] + track["length"]) >= 0
        assert all(data["names"][name] for name in track["name"]) and len(track["kind"]) == len(track["begin"])
    forwards = [data["names"][name] for name in measured[1]["name"] if data["names"][name].startswith("fwd/0")]
    assert sorted(forwards) == [f"fwd/0 [{k}]" for k in range(6)]
    (action,) = (each for each in data["actions"] if each["name"] == "fwd/0")
    assert action["count"] == 6 and 0 < action["most"] <= action["us"]
    # Estimates are shares of what was measured, by operator as by layer.
    for rows, name in ((data["operators"], "aten::addmm"), (data["layers"], "wide")):
        assert name in [row["name"] for row in rows]
        for at, prefix in enumerate(("fwd/", "bwd/")):
            whole = sum(each["us"] for each in data["actions"] if each["name"].startswith(prefix))
            assert sum(row["us"][at] for row in rows) == pytest.approx(whole, rel=0.01)
    memory = model.memoryReport()
    assert data["memory"] == memory
    facts = " ".join(data["facts"])
    assert re.search(r"devices work \d+ % of the time", facts) and "is the fullest" in facts
    assert "The simulator predicts" in facts
    assert "schedule" in data["explain"] and ["gradient_accumulation", "6"] in [
        [name.rpartition(".")[2], value] for name, value in data["options"]
    ]
    for advice in data["advice"]:
        assert advice["us"] > 0 and re.fullmatch(r"\d+ % less a micro-batch", advice["gain"]) and advice["how"]


def test_before_the_first_step(tmp_path):
    model = abele.inferenceModel(torch.nn.Linear(2, 3))
    with pytest.raises(abele.Error, match="E0705"):
        model.report(tmp_path / "report.html")
    model.compile(torch.ones(4, 2))
    model.report(tmp_path / "report.html")
    data = data_of(tmp_path / "report.html")
    assert data["tracks"] == [] and data["memory"]["devices"] and data["advice"] == []


def test_a_loaded_program_has_a_page_without_costs(tmp_path):
    model = abele.inferenceModel(torch.nn.Linear(2, 3))
    model.compileAndExport(tmp_path / "net", torch.ones(4, 2))
    loaded = abele.load(tmp_path / "net", trust=True)
    loaded(torch.ones(4, 2))
    loaded.report(tmp_path / "report.html")
    data = data_of(tmp_path / "report.html")
    assert data["memory"] is None and data["explain"] == "" and data["tracks"]


def test_the_command(model, tmp_path):
    trace = tmp_path / "step.json"
    model.trace(trace, steps=2)
    for _ in range(2):
        model(torch.randn(24, 8), torch.randn(24, 4))
    done = subprocess.run([TOOL, trace], text=True, capture_output=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'step.html'}\n"), done.stderr
    data = data_of(tmp_path / "step.html")
    assert data["title"] == "step.json" and ["2", "traced calls"] in data["figures"]
    whole = trace.read_text()
    for text in (whole[: len(whole) // 2], whole[:-20]):  # the program was killed
        trace.write_text(text)
        write_page(tmp_path / "killed.html", trace)
        assert 0 < len(data_of(tmp_path / "killed.html")["names"]) <= len(data["names"])
    for text in ("", "[]", "no trace\n", '{"traceEvents": [{"ph": "X"}]}'):
        trace.write_text(text)
        with pytest.raises(abele.Error, match="E0501"):
            write_page(tmp_path / "none.html", trace)
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(abele.Error, match="E0712"):
            write_page(tmp_path / "none.html", tmp_path / name)
    done = subprocess.run([TOOL, tmp_path / "none", "-o", tmp_path / "none.html"], text=True, capture_output=True)
    assert done.returncode == 1 and "E0712" in done.stderr and not (tmp_path / "none.html").exists()


SPAN = {"ph": "X", "name": "call 0", "pid": 1, "tid": 1, "ts": 0, "dur": 1}


@pytest.mark.parametrize(
    "events",
    [
        [{"name": "call 0", "pid": 1, "tid": 1}],
        [{**SPAN, "ts": None}],
        [{**SPAN, "ts": "soon"}],
        [{**SPAN, "dur": float("inf")}],
        [{**SPAN, "ts": 10**400}],
        [{**SPAN, "pid": [1]}],
        [SPAN, {**SPAN, "pid": "1"}],
        [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0}],
        [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": 3}, SPAN],
        SPAN,
        3,
    ],
)
def test_traces_that_are_none_are_refused(events, tmp_path):
    path = tmp_path / "damaged.json"
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(abele.Error, match="E0501"):
        write_page(path.with_suffix(".html"), path)
    assert not path.with_suffix(".html").exists()


def test_a_trace_nested_without_end_is_refused(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text('{"traceEvents": ' + "[" * 200_000)
    with pytest.raises(abele.Error, match="E0501"):
        write_page(tmp_path / "deep.html", path)


def test_it_asks_nobody_for_anything():
    text = TEMPLATE.read_text()
    assert len(text) < 300_000
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest|src=|<link", text)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to read JavaScript")
def test_its_program_can_be_read(tmp_path):
    (tmp_path / "page.js").write_text(TEMPLATE.read_text().rpartition("<script>")[2].partition("</script>")[0])
    subprocess.run(["node", "--check", tmp_path / "page.js"], check=True, timeout=100)
