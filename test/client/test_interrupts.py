"""Ctrl-C while native code works or waits, and threads that are inside of it when the program ends."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import poptorch
import pytest
import torch
from support import warm

PYTHON = Path(poptorch.__file__).parents[1]
LIMIT_S = 300


@pytest.fixture(autouse=True)
def ctrl_c():
    """A shell starts jobs of the background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Training(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 16), torch.nn.Linear(16, 2)

    def forward(self, x):
        poptorch.Block.start("first", ipu_id=0)
        h = self.first(x).relu()
        poptorch.Block.start("second", ipu_id=1)
        return poptorch.identity_loss(self.second(h).square(), reduction="mean")


def _interrupt_soon():
    """Ctrl-C from another thread, once this one is inside of native code or about to be."""
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()


def test_a_long_step():
    model = Training()
    opts = poptorch.Options().deviceIterations(20_000)
    opts.Training.gradientAccumulation(3)
    executor = poptorch.trainingModel(model, opts)
    x = torch.randn(60_000, 8)
    executor.compile(x)
    interrupted = False
    try:
        _interrupt_soon()
        while True:
            executor(x)
    except KeyboardInterrupt:
        interrupted = True
    assert interrupted
    assert torch.isfinite(executor(x)).all()
    executor.destroy()
    assert torch.isfinite(model.first.weight).all()


@pytest.mark.parametrize("call", ["call", "copyWeightsToHost", "report", "destroy"])
def test_waiting_for_another_thread(call):
    """That thread is inside of a step for as long as its host function waits."""
    inside, go = threading.Event(), threading.Event()

    class Host(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)
            self.host = poptorch.CPU(self.wait, f"waits {call}")
            self.waits = False

        def wait(self, x):
            if self.waits:
                inside.set()
                go.wait(LIMIT_S)
            return x

        def forward(self, x):
            return self.host(self.linear(x))

    model = Host()
    executor = poptorch.inferenceModel(model)
    x = torch.ones(1, 3)
    expected = executor(x)
    model.waits = True
    results = []
    thread = threading.Thread(target=lambda: results.append(executor(x)))
    thread.start()
    assert inside.wait(LIMIT_S)
    try:
        with pytest.raises(KeyboardInterrupt):
            _interrupt_soon()
            executor(x) if call == "call" else getattr(executor, call)()
    finally:
        model.waits = False
        go.set()
        thread.join()
    assert torch.equal(results[0], expected)
    assert torch.equal(executor(x), expected)


AT_EXIT = """
import sys, threading
import poptorch, torch

class Model(torch.nn.Module):
    def __init__(self, host):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.host = poptorch.CPU(host, "host")

    def forward(self, x):
        poptorch.Block.start("first", ipu_id=0)
        y = self.linear(x)
        poptorch.Block.start("second", ipu_id=1)
        return self.host(y) if sys.argv[1] == "in a host function" else y + 1

inside = threading.Event()
def host(y):
    inside.set()
    return y

x = torch.ones(64, 8)
options = poptorch.Options().deviceIterations(64).showCompilationProgressBar(False)
executor = poptorch.inferenceModel(Model(host), options)
executor.compile(x)
inside.clear()

def work():
    while True:
        if sys.argv[1] == "compiling":
            other = poptorch.inferenceModel(Model(host), options)
            inside.set()
            other(x)
        else:
            executor(x)
            inside.set()

for _ in range(2 if sys.argv[1] == "waiting" else 1):
    threading.Thread(target=work, daemon=True).start()
inside.wait()
for _ in range(int(sys.argv[2])):
    pass
print("ends", flush=True)
"""


@pytest.mark.parametrize("where", ["in a step", "in a host function", "waiting", "compiling"])
def test_daemon_threads_at_exit(where):
    for spins in ("0", "10000", "100000"):
        done = subprocess.run(
            [*warm.python(), "-c", AT_EXIT, where, spins],
            env={**os.environ, "PYTHONPATH": str(PYTHON)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")
