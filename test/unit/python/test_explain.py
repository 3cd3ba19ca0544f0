"""abele.explain and abele-sim --explain: why a program is placed as it is."""

import re
import subprocess
import sys
from pathlib import Path

import abele
import poptorch
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from air_files import tool


class Net(torch.nn.Module):
    def __init__(self, annotated=False):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(8))
        if annotated:
            abele.BeginBlock(self.layers[4], ipu_id=1)

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return poptorch.identity_loss(x.square().mean(), reduction="none")


def train(strategy, annotated=False, package=abele):
    options = package.Options().setExecutionStrategy(strategy)
    options.Training.gradientAccumulation(4)
    net = Net(annotated)
    model = package.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    model.compile(torch.randn(32, 32))
    return model


def auto_split(devices):
    return abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(devices)


def test_says_what_it_explains():
    with pytest.raises(abele.Error, match="E0708 .*explain\\(\\) of a Net(?s:.*)executor = abele.trainingModel"):
        abele.explain(Net())
    with pytest.raises(abele.Error, match="E0708 .*explain\\(\\) of a dict"):
        abele.explain({})
    model = train(auto_split(2))
    assert abele.explain(model.model) == abele.explain(model)  # the module that it trains


def test_says_where_and_why():
    model = train(auto_split(4).schedule("1f1b"))
    text = abele.explain(model)
    lines = text.splitlines()
    assert re.match(
        r"4 stages on 4 devices, 1f1b, 1 update of 4 micro-batches: predicted step [\d.]+ ms, [\d.]+ %", lines[0]
    )
    stages = [line.split() for line in lines[2:6]]
    assert [row[:2] for row in stages] == [[str(s), str(s)] for s in range(4)]
    persistent = [float(row[5]) for row in stages]
    # Weight and bias, gradient sum and momentum of each layer.
    assert sum(persistent) == pytest.approx(3 * 8 * 4 * 33 * 32 / 2**20, rel=0.03)
    assert all("test_explain.py:" in line and " .. " in line for line in lines[2:6])
    assert "cut at: aten::" in text and text.count("next best cuts") == 3
    assert "2 devices" in text and "1 device " in text and "schedule zero-bubble" in text
    # Nothing that was looked at is better.
    assert not re.search(r"next best cuts +[\d.]+ +-", text)
    assert text == abele.explain(train(auto_split(4).schedule("1f1b")))


def test_annotated_models_and_both_packages():
    strategy = poptorch.PipelinedExecution()
    for package in (abele, poptorch):
        text = abele.explain(train(strategy, annotated=True, package=package))
        assert text.startswith("2 stages on 2 devices, ") and "schedule gpipe: " in text
        assert "cut at: " not in text


def test_auto_takes_the_first_of_the_list():
    model = train(abele.PipelinedExecution().schedule("auto"), annotated=True)
    schedules = re.findall(r"schedule ([\w-]+): [\d.]+ ms, (.*) %", abele.explain(model))
    assert len(schedules) == 5 and all(not difference.startswith("-") for _, difference in schedules)
    assert model.planText().startswith(f"plan {schedules[0][0]} ")


def test_links_of_the_costs_count():
    machine = {"links": [{"name": "slow link", "latency_ns": 1000, "bytes_per_s": 1e6}]}
    plain, linked = (train(strategy) for strategy in (auto_split(2), auto_split(2).costs({"machine": machine})))
    step = lambda text: float(re.search(r"predicted step ([\d.]+) ms", text)[1])  # noqa: E731
    texts = abele.explain(plain), abele.explain(linked)
    assert "slow link" not in texts[0] and "slow link" in texts[1]
    assert step(texts[1]) > step(texts[0])
    annotated = train(abele.PipelinedExecution().schedule("auto").costs({"machine": machine}), annotated=True)
    assert "slow link" in abele.explain(annotated)


def test_a_model_that_is_not_compiled():
    net = Net()
    model = abele.inferenceModel(net)
    with pytest.raises(abele.Error):
        abele.explain(model)


def test_tool(tmp_path):
    model = train(auto_split(2))
    captured = tmp_path / "captured.air"
    captured.write_text(model._executable.session.capturedText())
    run = lambda *arguments: subprocess.run(  # noqa: E731
        [tool("abele-sim"), captured, *arguments], capture_output=True, text=True, check=False
    )
    done = run("--devices", "1,2,4", "--micro-batches", "4", "--explain")
    assert done.returncode == 0, done.stderr
    table = [line.split() for line in done.stdout.splitlines()[1:4]]
    assert [row[0] for row in table] == ["1", "2", "4"] and float(table[2][3]) < float(table[0][3])
    assert "4 stages on 4 devices" in done.stdout and done.stdout.count("cut at: ") == 3
    machine = tmp_path / "machine.json"
    machine.write_text('{"links": [{"name": "slow link", "latency_ns": 1000, "bytes_per_s": 1e6}]}')
    linked = run("--devices", "2", "--micro-batches", "4", "--explain", "--machine", machine, "--replicas", "2")
    assert "slow link" in linked.stdout and "forward of stage 0 to forward of stage 1" in linked.stdout
    assert "gradients of stage 1 over 2 replicas: " in linked.stdout
    assert "slow link" not in done.stdout and "gradients" not in done.stdout
    assert float(linked.stdout.splitlines()[1].split()[3]) > float(table[1][3])
    refused = run("--devices", "99")
    assert refused.returncode == 1 and "E0406" in refused.stderr
    assert "E0901" in run("--devices", "2", "--print-costs").stderr


def peaks(model):
    return [device["peak_bytes"] for device in model.memoryReport()["devices"]]


def test_auto_prefers_what_fits_the_device():
    def train_within(limit):
        options = abele.Options().setExecutionStrategy(abele.PipelinedExecution().schedule("auto"))
        options.Training.gradientAccumulation(8)
        if limit is not None:
            options.deviceMemoryLimit(limit)
        net = Net(annotated=True)
        model = abele.trainingModel(net, options, torch.optim.SGD(net.parameters(), lr=0.1))
        model.compile(torch.randn(8 * 256, 32))
        return model

    roomy = train_within(None)
    tight = train_within(max(peaks(roomy)) - 1)
    assert max(peaks(tight)) < max(peaks(roomy))
    assert tight.planText().splitlines()[0] != roomy.planText().splitlines()[0]


class Uneven(torch.nn.Module):
    """First what takes memory, then what takes time."""

    def __init__(self):
        super().__init__()
        self.large = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(6))
        self.busy = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        for layer in self.large:
            x = torch.tanh(layer(x))
        x = x.reshape(-1, 8).repeat(256, 1)
        for layer in self.busy:
            x = torch.tanh(layer(x))
        return poptorch.identity_loss(x.square().mean(), reduction="none")


def test_a_split_keeps_to_the_memory_of_a_device():
    def train_within(limit):
        options = abele.Options().setExecutionStrategy(auto_split(2))
        if limit is not None:
            options.deviceMemoryLimit(limit)
        torch.manual_seed(0)
        net = Uneven()
        model = abele.trainingModel(net, options, torch.optim.AdamW(net.parameters(), lr=0.1))
        return model, model(torch.ones(2, 256))

    roomy, loss = train_within(None)
    limit = max(peaks(roomy)) * 9 // 10
    tight, same = train_within(limit)
    assert max(peaks(tight)) <= limit
    assert torch.equal(loss, same)
