"""abele.simulate and the tool abele-sim give the same figures, and those of a compiled model."""

import json
import subprocess
import sys
from pathlib import Path

import abele
import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from air_files import tool

EQUAL = {"forward_ns": 100, "backward_ns": 100, "weight_grad_ns": 100}


def abele_sim(*arguments, text=""):
    command = [tool("abele-sim"), *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def test_waiting_is_that_of_the_papers():
    stages = [EQUAL] * 4
    idle = {
        schedule: max(w["idle_ns"] for w in abele.simulate(stages, schedule, 8)["workers"])
        for schedule in ("gpipe", "1f1b", "zero-bubble", "zero-bubble-2")
    }
    assert idle == {"gpipe": 900, "1f1b": 900, "zero-bubble": 300, "zero-bubble-2": 0}
    assert abele.simulate(stages, "gpipe", 8)["held"] == [8, 8, 8, 8]
    assert abele.simulate(stages, "1f1b", 8)["held"] == [4, 3, 2, 1]


def test_stages_are_shared_among_devices():
    layers = [{**EQUAL, "repeat": 12}]
    one = abele.simulate(layers, "1f1b", 8, devices=4)
    dealt = abele.simulate(layers, "interleaved", 8, devices=4, chunks=3)
    assert one["workers"][0]["idle_ns"] == 3 * 900
    assert dealt["workers"][0]["idle_ns"] == 900
    assert one["workers"][0]["busy_ns"] == dealt["workers"][0]["busy_ns"] == 8 * 900


def test_charts_and_traces(tmp_path):
    step = abele.simulate([EQUAL] * 2, "gpipe", 2)
    assert step.chart() == "worker 0: F0 F1 . . B0 B1 U1\nworker 1: . F0 F1 B0 B1 . U1\n"
    step.writeTrace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {e["name"] for e in events if e["ph"] == "X"} == {"F0", "F1", "B0", "B1", "U1"}
    assert round(sum(e["dur"] for e in events if e["ph"] == "X" and e["tid"] == 0) * 1000) == 2 * 300


def test_inference():
    assert abele.simulate([EQUAL] * 3, micro_batches=5, training=False)["step_ns"] == 7 * 100


def test_the_tool_tells_the_same():
    costs = {"hop_ns": 10, "stages": [{**EQUAL, "stash_bytes": 1 << 20, "repeat": 8}]}
    run = abele_sim(
        "--devices=2,4", "--schedules=1f1b,zero-bubble", "--micro-batches=4,8", "--format=json", text=json.dumps(costs)
    )
    rows = json.loads(run.stdout)
    assert [(r["devices"], r["schedule"], r["micro_batches"]) for r in rows] == [
        (d, s, m) for d in (2, 4) for s in ("1f1b", "zero-bubble") for m in (4, 8)
    ]
    for row in rows:
        assert row == abele.simulate(costs, row["schedule"], row["micro_batches"], devices=row["devices"])


def test_the_tool_takes_a_thousand_devices():
    costs = json.dumps({"stages": [{**EQUAL, "repeat": 1024}]})
    run = abele_sim("--devices=1024", "--micro-batches=64", "--device-bytes=1", text=costs)
    assert run.returncode == 0 and run.stdout.splitlines()[1].split()[:3] == ["1024", "1f1b", "64"]


@pytest.mark.parametrize(
    "arguments, found",
    [
        (["missing.json"], "E0901 tool-arguments: cannot read missing.json"),
        (["--schedules=fast"], "E0901 tool-arguments: there is no schedule fast"),
        (["--devices=0"], "E0901 tool-arguments"),
        (["--format=xml"], "E0901 tool-arguments: there is no format xml"),
        (["--devices=3"], "E0404 costs: a chain of 2 stages in 3 parts"),
    ],
)
def test_the_tool_refuses(arguments, found):
    run = abele_sim(*arguments, text=json.dumps({"stages": [EQUAL] * 2}))
    assert run.returncode == 1 and found in run.stderr


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        with abele.Block("first", ipu_id=0):
            x = self.first(x).tanh()
        with abele.Block("second", ipu_id=1):
            return abele.identity_loss(self.second(x) ** 2, reduction="mean")


def compiled(accumulation):
    opts = abele.Options()
    opts.Training.gradientAccumulation(accumulation)
    module = Model()
    return abele.trainingModel(module, opts, torch.optim.SGD(module.parameters(), lr=0.1))


def test_costs_of_a_compiled_model():
    model = compiled(4)
    model.compile(torch.randn(32, 64))
    before = model.costs()["stages"]
    model(torch.randn(32, 64))
    after = model.costs()["stages"]
    assert [s["device"] for s in after] == [0, 1]
    for stages in (before, after):
        assert all(s["forward_ns"] > 0 and s["weight_grad_ns"] > 0 and s["stash_bytes"] > 0 for s in stages)
        # No stage waits for the backward of the first stage; the second has both parts.
        assert stages[0]["backward_ns"] == 0 and stages[1]["backward_ns"] > 0
    assert before != after
    step = abele.simulate(model.costs(), "1f1b", 4)
    work = sum(4 * (s["forward_ns"] + s["backward_ns"] + s["weight_grad_ns"]) + s["update_ns"] for s in after)
    assert sum(w["busy_ns"] for w in step["workers"]) == work


def test_a_compiled_model_tells_what_it_hands_over():
    model = compiled(4)
    model.compile(torch.randn(32, 64))
    costs = model.costs()
    block = 8 * 64 * 4  # a micro-batch
    assert costs["handovers"] == [
        {"from": "F0", "to": "F1", "bytes": block},
        {"from": "B1", "to": "W0", "bytes": block},  # nothing of the first backward is waited for
    ]
    assert [stage["gradient_bytes"] for stage in costs["stages"]] == [64 * 65 * 4] * 2
    one_memory = abele.simulate(costs, "1f1b", 4)
    assert "transfers" not in one_memory
    slow = {"links": [{"name": "slow", "latency_ns": 0, "bytes_per_s": 1e6}]}
    assert abele.simulate(costs, "1f1b", 4, machine=slow)["step_ns"] > one_memory["step_ns"]


def test_the_tool_reads_graphs(tmp_path):
    model = compiled(1)
    model.compile(torch.randn(32, 64))
    (tmp_path / "graph.air").write_text(model.graphText())
    run = abele_sim(tmp_path / "graph.air", "--schedules=1f1b,zero-bubble-2", "--micro-batches=8", "--format=json")
    rows = json.loads(run.stdout)
    assert [row["devices"] for row in rows] == [2, 2]
    assert rows[1]["step_ns"] <= rows[0]["step_ns"] and rows[0]["peak_bytes"] > 0


HOSTS_OF_TWO = {
    "name": "hosts of two",
    "device": {"bytes": 1 << 20},
    "links": [
        {"name": "within a host", "devices": 2, "latency_ns": 10, "bytes_per_s": 1e9},
        {"name": "between hosts", "latency_ns": 100, "bytes_per_s": 1e8},
    ],
}


def test_links_take_their_time(tmp_path):
    stages = [{**EQUAL, "forward_bytes": 40, "backward_bytes": 40, "gradient_bytes": 200}] * 4
    free = abele.simulate(stages, "1f1b", 8)
    assert "transfers" not in free and "replicas" not in free
    linked = abele.simulate(stages, "1f1b", 8, machine=HOSTS_OF_TWO)
    assert linked["step_ns"] > free["step_ns"]
    assert [(t["from"], t["to"], t["link"], t["time_ns"]) for t in linked["transfers"]][:3] == [
        ("F0", "F1", "within a host", 50),
        ("F1", "F2", "between hosts", 500),
        ("B1", "B0", "within a host", 50),
    ]
    pair = abele.simulate(stages, "1f1b", 8, machine=HOSTS_OF_TWO, replicas=2)
    assert pair["replicas"] == 2 and pair["sums_ns"] == [2 * (100 + 1000)] * 4
    assert pair["step_ns"] == linked["step_ns"] + 2 * (100 + 1000)
    (tmp_path / "machine.json").write_text(json.dumps(HOSTS_OF_TWO))
    arguments = ("--micro-batches=8", "--replicas=1,2", "--machine", tmp_path / "machine.json", "--format=json")
    run = abele_sim(*arguments, text=json.dumps({"stages": stages}))
    rows = json.loads(run.stdout)
    assert [row["fits"] for row in rows] == [True, True]
    limited = {"machine": HOSTS_OF_TWO, "device_bytes": 1 << 20}
    assert rows == [abele.simulate(stages, "1f1b", 8, **limited, replicas=n) for n in (1, 2)]


def test_the_tool_takes_replicas_on_a_thousand_devices(tmp_path):
    stage = {**EQUAL, "forward_bytes": 1000, "backward_bytes": 1000, "gradient_bytes": 100, "repeat": 128}
    (tmp_path / "machine.json").write_text(json.dumps(HOSTS_OF_TWO))
    arguments = ("--devices=64", "--replicas=16", "--micro-batches=64", "--machine", tmp_path / "machine.json")
    runs = [abele_sim(*arguments, *more, text=json.dumps({"stages": [stage]})) for more in ((), ("--early-sums",))]
    rows = [run.stdout.splitlines()[1].split() for run in runs]
    assert [row[0] for row in rows] == ["1024", "1024"] and rows[0][7] == "16"
    assert float(rows[1][3]) <= float(rows[0][3])


def test_the_tool_refuses_machines():
    run = abele_sim("--replicas=2", text=json.dumps({"stages": [EQUAL]}))
    assert run.returncode == 1 and "E0901 tool-arguments: --replicas without links" in run.stderr
    run = abele_sim("--machine=-", text="{}{}")
    assert run.returncode == 1 and "E0404" in run.stderr


@pytest.mark.parametrize("device_bytes", (70, {0: 90, 1: 69}))
def test_marks_what_does_not_fit(device_bytes):
    stages = [{"forward_ns": 1, "stash_bytes": 10, "persistent_bytes": 50}] * 2
    free = abele.simulate(stages, "gpipe", 2)
    assert "fits" not in free and [worker["peak_bytes"] for worker in free["workers"]] == [70, 70]
    run = abele.simulate(stages, "gpipe", 2, device_bytes=device_bytes)
    fits = [worker["fits"] for worker in run["workers"]]
    assert fits == ([True, True] if device_bytes == 70 else [True, False])
    assert run["fits"] == all(fits) and run["spare_bytes"] == (0 if device_bytes == 70 else -1)
    assert abele.simulate(stages, "gpipe", 2, device_bytes=69)["fits"] is False
    text = json.dumps({"stages": stages})
    for limit, expected in ((70, True), (69, False)):
        asked = ("--schedules=gpipe", "--micro-batches=2", f"--device-bytes={limit}", "--format=json")
        (row,) = json.loads(abele_sim(*asked, text=text).stdout)
        assert row["fits"] is expected and row["spare_bytes"] == limit - 70
