"""The process of a program that uses us stays as it was: docs/process.md lists what does not, and nothing else may."""

import json
import pathlib
import subprocess
import sys

import pytest
from support import warm

ROOT = pathlib.Path(__file__).parents[2]

# What a census finds, and the words of docs/process.md that list it.
LISTED = {
    "process atexit": "`atexit`",
    "loggers poptorch::python": "`poptorch::python`",
    "process reducers": "`copyreg`",
    "members torch.Tensor.backward": "`torch.Tensor.backward`",
    "members torch.overrides.has_torch_function": "`torch.overrides.has_torch_function`",
    "members torch.autocast.__init__": "`torch.autocast`",
    "members torch.get_autocast_dtype": "`torch.autocast`",
    "members torch.is_autocast_enabled": "`torch.autocast`",
    "members torch.set_autocast_dtype": "`torch.autocast`",
    "members torch.set_autocast_enabled": "`torch.autocast`",
    "members torch.range": "`torch.range`",
    "torch random": "a mark in the default generator",
}
ALWAYS = {"process atexit", "loggers poptorch::python", "process reducers", "members torch.Tensor.backward"}
# The names that may differ in each stage.
STAGES = {
    "import": ALWAYS,
    "compile": ALWAYS,
    "step": ALWAYS,
    "capture of a training": ALWAYS | {"torch random"},
    "capture of an inference": ALWAYS | {"torch random", "members torch.overrides.has_torch_function"},
    "destroy": ALWAYS,
}


def _run(code, *arguments, check=True, timeout=300):
    command = [*warm.python(), "-c", code] if "\n" in code else [sys.executable, code]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=timeout)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("package", ["abele", "poptorch"])
def test_a_census_of_the_process(package):
    found = json.loads(_run(str(pathlib.Path(__file__).with_name("census.py")), package).stdout)
    page = (ROOT / "docs" / "process.md").read_text()
    assert found.keys() == STAGES.keys()
    for stage, names in found.items():
        of_poptorch = {name for name in LISTED if "autocast" in name or name == "members torch.range"}
        may_be = STAGES[stage] | (of_poptorch if package == "poptorch" and stage.startswith("capture") else set())
        assert set(names) <= may_be, stage
    for words in LISTED.values():
        assert words in page


_MODEL = """
import os, random, signal, sys, threading
import torch, {package} as package
torch.set_num_threads(1)
inside, go = threading.Event(), threading.Event()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x) + torch.rand(4)
        inside.set()
        assert go.wait(60)
        return torch.nn.functional.dropout(y, 0.5, True)

def model(module):
    return package.inferenceModel(module, package.Options().showCompilationProgressBar(False))

net = Net()
compiled = model(net)
x = torch.ones(1, 4)
thread = threading.Thread(target=lambda: compiled(x))
"""


def _meanwhile(package, code):
    """Runs code in a process in which another thread is inside forward of a model that is being compiled."""
    begin = "thread.start()\nassert inside.wait(60)\ntry:\n"
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    return _run(_MODEL.format(package=package) + begin + body + "finally:\n    go.set()\n    thread.join()\n")


BOTH = pytest.mark.parametrize("package", ["abele", "poptorch"])


@BOTH
def test_random_numbers_of_another_thread(package):
    _meanwhile(
        package,
        """
torch.manual_seed(7)
state, drawn = torch.get_rng_state(), torch.rand(3)
random.seed(3)
own = random.random()
go.set()
thread.join()
behind = torch.rand(3)
torch.manual_seed(7)
assert torch.equal(drawn, torch.rand(3)) and torch.equal(behind, torch.rand(3))
torch.set_rng_state(state)
assert torch.equal(drawn, torch.rand(3))
following = random.random()
random.seed(3)
assert (own, following) == (random.random(), random.random())
""",
    )


@BOTH
def test_the_default_generator_is_not_moved(package):
    _run(
        _MODEL.format(package=package)
        + """
go.set()
torch.manual_seed(5)
before = torch.get_rng_state()
compiled.compile(x)
assert torch.equal(before, torch.get_rng_state())
"""
    )


@BOTH
def test_a_child_that_is_forked_while_another_thread_compiles(package):
    _meanwhile(
        package,
        """
child = os.fork()
if child == 0:
    signal.alarm(60)
    try:
        net.layer(x), torch.rand(2), net.layer.weight.detach().numpy()
        assert model(torch.nn.Linear(4, 2))(x).shape == (1, 2)
        os._exit(0)
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
status = os.waitpid(child, 0)[1]
assert status == 0, status
""",
    )


@BOTH
def test_forks_beside_captures_and_operators(package):
    _run(
        f"""
import os, signal, threading
import torch, {package} as package
torch.set_num_threads(1)
stop = threading.Event()

# Made before the forks: a thread that draws holds the lock of torch's generator, and a child would wait for it.
model, x = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(20))), torch.randn(4, 16)

def capture():
    made = package.inferenceModel(model, package.Options().showCompilationProgressBar(False))
    made.compile(x)
    made.destroy()

def captures():
    while not stop.is_set():
        capture()

capture()  # Python's locks of modules that a thread imports stay locked in a child

def operators():
    value = torch.ones(4, 4)
    while not stop.is_set():
        value = torch.tanh(value + 1)

threads = [threading.Thread(target=function) for function in (captures, operators, operators)]
for thread in threads:
    thread.start()
hang = 0
for count in range(100):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        torch.ones(3) + torch.rand(3)
        if count % 4 == 0:  # a program of its own, with devices
            made = package.inferenceModel(torch.nn.Linear(3, 2), package.Options().showCompilationProgressBar(False))
            made(torch.ones(1, 3))
        os._exit(0)
    hang += os.waitpid(child, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
assert hang == 0, hang
"""
    )


@BOTH
def test_torch_is_the_same_for_other_threads(package):
    _meanwhile(
        package,
        """
def refuses(function):
    try:
        function()
    except ValueError:
        return True

normal, loss = torch.distributions.Normal, torch.nn.functional.gaussian_nll_loss
assert refuses(lambda: normal(0.0, -1.0))
assert refuses(lambda: loss(torch.ones(2), torch.ones(2), -torch.ones(2)))
weight = net.layer.weight.detach()
assert weight.numpy().shape == (4, 4) and len(weight.tolist()) == 4
assert torch.equal(torch.from_dlpack(weight), weight) and weight.data_ptr() != 0
assert weight.device.type == "cpu" and repr(torch.ones(1)) == "tensor([1.])"
numbers = []
worker = threading.Thread(target=lambda: numbers.append(weight.sum().item()))
worker.start()
worker.join()
assert numbers == [weight.sum().item()]
exported = torch.export.export(torch.nn.Sequential(torch.nn.Linear(4, 4)), (x,))
assert [node.op for node in exported.graph.nodes] == ["placeholder"] * 3 + ["call_function", "output"]
""",
    )


@BOTH
@pytest.mark.parametrize("make", ["random.Random(1).random()", "numpy.random.default_rng(1).random()"])
def test_generators_made_by_another_thread(package, make):
    _run(
        f"""
import random, threading
import numpy, torch, {package} as package
torch.set_num_threads(1)
stop = threading.Event()

def makes():
    while not stop.is_set():
        {make}

thread = threading.Thread(target=makes)
thread.start()
for _ in range(50):
    made = package.inferenceModel(torch.nn.Linear(4, 4), package.Options().showCompilationProgressBar(False))
    made(torch.ones(2, 4))
    made.destroy()
stop.set()
thread.join()
"""
    )


@BOTH
@pytest.mark.parametrize(
    "configure",
    [
        "pass",
        "import logging.config; logging.config.dictConfig({'version': 1})",
        "import logging; logging.disable(logging.CRITICAL)",
        "import logging; logging.basicConfig()",
    ],
)
def test_an_uncaught_exception_is_printed_once(package, configure):
    done = _run(f"import {package}\n{package}.Options\n{configure}\nraise ValueError('mine')", check=False)
    assert done.returncode == 1 and done.stderr.count("ValueError: mine") == 1


def test_a_process_that_is_ended_says_nothing():
    done = _run("import poptorch, os, signal\nos.kill(os.getpid(), signal.SIGTERM)", check=False)
    assert done.returncode == -15 and done.stderr == ""
