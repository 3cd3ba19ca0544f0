"""Who has which devices, as abele monitor, gc-monitor, gc-info and gc-inventory show it. Source: spec tools.md."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import abele
import gcipuinfo
import poptorch
import pytest
import torch
from abele._native import core

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (ROOT / os.environ.get("ABELE_BUILD_DIR", "build/dev")).resolve() / "tools"

PROGRAM = """
import os, sys, torch, poptorch
def model(devices, training, replicas=1, name=None, group=None, **connection):
    net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(devices)))
    for i in range(devices):
        net[i] = poptorch.BeginBlock(net[i], f"b{i}", ipu_id=i)
    opts = poptorch.Options().replicationFactor(replicas).deviceIterations(1 if training else devices)
    if name: opts.modelName(name)
    if group is not None: opts.useIpuId(group)
    if connection: opts.connectionType(connection["connection"])
    if not training: return poptorch.inferenceModel(net, opts)
    opts.Training.gradientAccumulation(2 * devices)
    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net
        def forward(self, x):
            y = self.net(x)
            return y, poptorch.identity_loss(y.square().mean(), "mean")
    return poptorch.trainingModel(WithLoss(), opts, torch.optim.SGD(net.parameters(), 0.1))
def batch(m): return torch.ones(m.options.replication_factor * m.options.Training.gradient_accumulation, 4)
def infer(m): return m(torch.ones(m.options.replication_factor * m.options.device_iterations, 4))
def at(point):
    print(point, flush=True)
    return sys.stdin.readline()
"""


class Program:
    """A Python program that stops at points until it is told to go on."""

    def __init__(self, text, **variables):
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM + text],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def reaches(self, point):
        assert self._process.stdout.readline().strip() == point

    def go(self):
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self):
        assert self._process.wait(timeout=120) == 0

    def kill(self, number=signal.SIGKILL):
        self._process.send_signal(number)
        self._process.wait(timeout=120)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()


@pytest.fixture(autouse=True)
def registry(tmp_path, monkeypatch):
    """A registry of this test's own."""
    monkeypatch.setenv("ABELE_REGISTRY", str(tmp_path))
    return tmp_path / f"abele-{os.geteuid()}"


def call(*words):
    done = subprocess.run([TOOLS / words[0], *words[1:]], text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shown():
    """(pid, ids of devices, steps) of each attached model."""
    models = json.loads(call("abele-monitor", "--json"))["attached"]
    return [(m["pid"], [d["id"] for d in m["devices"]], m["steps"]) for m in models]


def rows(*words):
    """Cells of gc-monitor's rows that begin with a number."""
    cells = [[c.strip() for c in line.split("|")[1:-1]] for line in call("gc-monitor", *words).splitlines()]
    return [row for row in cells if row and row[0].isdigit()]


def test_nothing_is_attached():
    assert call("abele-monitor") == "no process has devices; there are 64\n"
    assert "No attached processes" in call("gc-monitor", "--no-card-info")
    assert json.loads(call("gc-monitor", "-j"))["processes"] == []


def test_a_pipeline_of_two_stages_and_replicas_has_four_devices():
    program = """
m = model(2, True, replicas=2, name='bert'); at('made')
for _ in range(3): m(batch(m))
at('trained')
m.destroy(); at('destroyed')
"""
    with Program(program) as p:
        p.reaches("made")
        assert shown() == []
        p.go()
        p.reaches("trained")
        assert shown() == [(p.pid, [0, 1, 2, 3], 3)]
        assert [row[0] for row in rows("--no-card-info")] == [str(p.pid)] * 4
        assert [row[4] for row in rows("--no-card-info")] == ["0", "1", "2", "3"]
        assert re.fullmatch(r"\d+s", rows()[-1][2]) and rows()[-1][5] == "1330MHz"
        text = call("abele-monitor")
        assert len(re.findall(rf"^ *\d+  cpu +{p.pid} .* bert \(training\) ", text, re.M)) == 4, text
        assert text.endswith("4 devices are in use by 1 process; there are 64\n")
        busy = [d["busy_s"] for d in json.loads(call("abele-monitor", "-j"))["attached"][0]["devices"]]
        assert all(0 < seconds < 60 for seconds in busy)
        p.go()
        p.reaches("destroyed")
        assert shown() == []
        p.go()
        p.wait()


def test_a_killed_program_is_gone(registry):
    with Program("m = model(2, False); infer(m); at('ran')") as p:
        p.reaches("ran")
        assert shown() == [(p.pid, [0, 1], 1)]
        p.kill()
        assert shown() == []
        assert len(list(registry.glob(f"{p.pid}-*"))) == 1
    with Program("m = model(1, False); infer(m); at('ran')") as p:
        p.reaches("ran")
        assert shown() == [(p.pid, [0], 1)]
        assert [path.name.partition("-")[0] for path in registry.glob("*-*")] == [str(p.pid)]
        p.go()
        p.wait()
    assert shown() == []


def test_a_forked_child_keeps_no_devices():
    program = """
m = model(1, False); infer(m)
child = os.fork()
if child == 0:
    own = model(2, False); infer(own)
    at('both'); at('alone')
    os._exit(0)
os.waitpid(child, 0)
"""
    with Program(program) as p:
        p.reaches("both")
        (parent, _, _), (child, devices, steps) = shown()
        assert parent == p.pid != child and (devices, steps) == ([2, 3], 1)
        os.kill(p.pid, signal.SIGKILL)
        os.waitid(os.P_PID, p.pid, os.WEXITED | os.WNOWAIT)  # until its locks are gone
        p.go()
        p.reaches("alone")
        assert shown() == [(child, [2, 3], 1)]
        p.go()


def test_two_programs_get_devices_of_their_own():
    with Program("m = model(2, False); infer(m); at('ran')") as a:
        a.reaches("ran")
        with Program("m = model(2, False); infer(m); n = model(1, False, group=0); infer(n); at('ran')") as b:
            b.reaches("ran")
            assert sorted(shown()) == sorted([(a.pid, [0, 1], 1), (b.pid, [2, 3], 1), (b.pid, [0], 1)])
            a.kill()
            assert sorted(shown()) == sorted([(b.pid, [2, 3], 1), (b.pid, [0], 1)])


def test_more_programs_than_devices_share_them(monkeypatch):
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "2")
    with Program("m = model(2, False); infer(m); at('ran')") as a:
        a.reaches("ran")
        with Program("m = model(2, False); infer(m); at('ran')") as b:
            b.reaches("ran")
            assert sorted(shown()) == sorted([(a.pid, [0, 1], 1), (b.pid, [0, 1], 1)])
            assert "2 devices are in use by 2 processes; there are 2" in call("abele-monitor")


def test_exclusive_devices_are_refused_and_waited_for(monkeypatch):
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "2")
    net = torch.nn.Linear(2, 2)
    with Program("m = model(2, False); infer(m); at('ran')") as a:
        a.reaches("ran")
        monkeypatch.setenv("ABELE_EXCLUSIVE_DEVICES", "1")
        model = poptorch.inferenceModel(net)
        with pytest.raises(poptorch.Error, match=rf"no 1 device is free(.|\n)*process {a.pid}\) has devices 0 to 1"):
            model(torch.ones(1, 2))
        assert model.isCompiled() and not model.isAttachedToDevice()
        waits = "m = model(2, False); at('waits'); infer(m); at('ran')"
        with Program(waits, POPTORCH_WAIT_FOR_IPU="1", POPTORCH_LOG_LEVEL="INFO") as b:
            b.reaches("waits")
            b.go()
            a.kill()
            b.reaches("ran")
            assert [(pid, devices) for pid, devices, _ in shown()] == [(b.pid, [0, 1])]
        assert torch.equal(model(torch.ones(1, 2)), net(torch.ones(1, 2)))
        assert model.isAttachedToDevice()
        model.destroy()


def test_devices_are_had_while_attached():
    program = """
m = model(1, False, connection=poptorch.ConnectionType.OnDemand)
m.compile(torch.ones(1, 4)); at('compiled')
m.attachToDevice(); at('attached')
m.detachFromDevice(); at('detached')
infer(m); at('ran')
"""
    expected = {"compiled": [], "attached": [0], "detached": [], "ran": [0]}
    with Program(program) as p:
        for point, devices in expected.items():
            p.reaches(point)
            assert [model[1] for model in shown()] == ([devices] if devices else []), point
            p.go()
        p.wait()


def test_gc_info_and_gc_inventory_name_the_user(registry, monkeypatch):
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "2")
    with Program("m = model(1, False); infer(m); at('ran')", ABELE_EMULATED_DEVICES="2") as p:
        p.reaches("ran")
        text = call("gc-info", "-d", "0", "-i")
        assert f"  user process id: {p.pid}\n" in text and "  user executable: python" in text
        assert re.search(r"  ipu utilisation: \d+\.\d\d%\n", text)
        assert "user process id" not in call("gc-info", "-d", "1", "-i")
        devices = json.loads(call("gc-inventory", "-j"))["devices"]
        assert [device.get("user process id") for device in devices] == [str(p.pid), None, str(p.pid)]


def test_gcipuinfo_has_what_gc_inventory_prints(registry, monkeypatch):
    monkeypatch.setenv("ABELE_EMULATED_DEVICES", "2")
    inventory, watching = gcipuinfo.gcipuinfo(), gcipuinfo.gcipuinfo()
    watching.setUpdateMode(True)
    with Program("m = model(1, False); infer(m); at('ran')", ABELE_EMULATED_DEVICES="2") as p:
        p.reaches("ran")
        printed = json.loads(call("gc-inventory", "-j"))["devices"]
        loads = {"ipu utilisation", "ipu utilisation (session)"}  # change from moment to moment
        users = {"user executable", "user name", "user process id"}  # a process sees its own models in any registry
        for ours, theirs in zip(watching.getDevices(), printed, strict=True):
            assert ours.keys() | users == theirs.keys() | users
            assert {name for name in theirs if ours.get(name) != theirs[name]} <= loads | users
        ids = watching.getNamedAttributeForAll("user process id")
        assert [str(p.pid) in each.split(", ") for each in ids] == [True, False, True]
        assert not any(str(p.pid) in each for each in inventory.getNamedAttributeForAll("user process id"))  # as it was
    assert len(inventory) == 3 and [device["id"] for device in inventory] == ["0", "1", "2"]
    assert json.loads(inventory.getDevicesAsJSON())["devices"] == inventory.getDevices()
    assert inventory[1]["remote buffers supported"] == "1"


def test_watch_shows_again_and_again():
    process = subprocess.Popen(
        [TOOLS / "abele-monitor", "--watch", "--interval", "0.05", "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert [json.loads(process.stdout.readline())["attached"] for _ in range(3)] == [[]] * 3
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate()


def test_a_program_sees_itself():
    model = abele.inferenceModel(torch.nn.Linear(2, 2), abele.Options().modelName("mine"))
    model(torch.ones(1, 2))
    # Models of other tests may be alive in this process.
    (found,) = [one for one in core().attached() if one["model"] == "mine"]
    assert (found["pid"], found["steps"]) == (os.getpid(), 1)
    assert [(pid, steps) for pid, _, steps in shown()] == [(os.getpid(), 1)]
    model.destroy()
    assert shown() == [] and all(one["model"] != "mine" for one in core().attached())


def test_without_a_registry_programs_run(monkeypatch, tmp_path):
    for value in ("off", str(tmp_path / "absent")):
        monkeypatch.setenv("ABELE_REGISTRY", value)
        assert poptorch.inferenceModel(torch.nn.Linear(2, 2))(torch.ones(1, 2)).shape == (1, 2)
        assert shown() == []


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root, to be another user")
def test_users_see_each_other_and_believe_nobody(monkeypatch):
    with tempfile.TemporaryDirectory() as base:
        os.chmod(base, 0o1777)
        monkeypatch.setenv("ABELE_REGISTRY", base)
        monitor = shutil.copy(TOOLS / "abele-monitor", base)
        with Program("m = model(1, False); infer(m); at('ran')") as p:
            p.reaches("ran")
            other = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", monitor, "--json"]
            (seen,) = json.loads(subprocess.run(other, text=True, capture_output=True, check=True).stdout)["attached"]
            assert (seen["pid"], seen["user"]) == (p.pid, "root")
            # Another user's folder of this name, and a copy that no process locks.
            shutil.copytree(Path(base, "abele-0"), Path(base, "abele-12345"))
            shutil.copytree(Path(base, "abele-0"), Path(base, "abele-12346"))
            os.chown(Path(base, "abele-12346"), 12346, 12346)
            assert len(shown()) == 1


def test_gcipuinfo_names_attributes_that_are_misspelt(registry, caplog):
    inventory = gcipuinfo.gcipuinfo()
    poptorch.logger.propagate = True
    with caplog.at_level("WARNING", logger=poptorch.logger.name):
        for known in ("ipu power", "user process id"):
            inventory.getNamedAttributeForAll(known)
        assert not caplog.text
        assert set(inventory.getNamedAttributeForAll("ipu utilization")) == {"N/A"}
    assert "no device has an attribute 'ipu utilization', there is 'ipu utilisation'" in caplog.text
