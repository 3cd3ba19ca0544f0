"""Processes that are forked off after a model was compiled."""

import os
import subprocess
from pathlib import Path

import poptorch
import pytest
from support import warm

PYTHON = Path(poptorch.__file__).parents[1]
LIMIT_S = 300  # a process that hangs shall fail

# Two stages, so that a worker thread waits whatever the caller does.
SETUP = """
import gc, multiprocessing, os, sys, threading
import poptorch, torch

torch.set_num_threads(1)
torch.manual_seed(1)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2)

    def forward(self, x, target=None):
        poptorch.Block.start("first", ipu_id=0)
        h = self.first(x).relu()
        poptorch.Block.start("second", ipu_id=1)
        y = self.second(h)
        return y if target is None else torch.nn.functional.mse_loss(y, target)

def options(accumulation):
    opts = poptorch.Options()
    opts.deviceIterations(4 if accumulation == 1 else 1)
    opts.Training.gradientAccumulation(accumulation)
    return opts

x, target = torch.randn(4, 3), torch.randn(4, 2)
net, other = Net(), Net()
trainer = poptorch.trainingModel(net, options(4))
inference = poptorch.inferenceModel(other, options(1))
trainer(x, target)
inference(x)

def isEager(executor, module):
    with torch.no_grad():  # a micro-batch at a time, as the devices
        return torch.equal(executor(x), torch.cat([module(part) for part in x.chunk(4)]))

def code(call):
    try:
        call()
    except poptorch.Error as error:
        return error.code
    return "none"

def forked(child):
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)  # as a program ends
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == 0, status
"""
# The parent goes on as if nothing had been.
END = """
assert isEager(inference, other)
assert torch.isfinite(trainer(x, target))
print("goes on")
"""
CHILDREN = {
    "exits": "pass",
    "ends at once": "os._exit(0)",
    "destroys": "trainer.destroy(); inference.destroy()",
    "collects": "global trainer, inference; del trainer, inference; gc.collect()",
    "calls": "assert code(lambda: trainer(x, target)) == code(lambda: inference(x)) == 'E0607'",
    "reads": "assert code(trainer.copyWeightsToHost) == code(lambda: net.first.weight.sum()) == 'E0607'",
    "calls after destroying": """
        inference.destroy()
        assert isEager(inference, other)
        trainer.destroy()
        assert torch.isfinite(trainer(x, target))
""",
    "calls another model": """
        third = Net()
        assert isEager(poptorch.inferenceModel(third, options(1)), third)
""",
}


def _run(program, **variables):
    done = subprocess.run(
        [*warm.python(), "-c", SETUP + program + END],
        env={**os.environ, "PYTHONPATH": str(PYTHON), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout) == (0, "goes on\n"), done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("does", CHILDREN)
def test_a_forked_child(does):
    said = _run(f"def child():\n        {CHILDREN[does]}\nforked(child)\n")
    assert "Traceback" not in said and "ignored" not in said, said


def test_a_child_is_forked_while_another_thread_calls():
    _run("""
go = threading.Event()
def train():
    go.set()
    for _ in range(200):
        trainer(x, target)
thread = threading.Thread(target=train)
thread.start()
go.wait()
def child():
    assert code(lambda: trainer(x, target)) == "E0607"
    trainer.destroy()
for _ in range(5):
    forked(child)
thread.join()
""")


def test_workers_of_loaders_and_processes_are_forked():
    _run("""
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, index):
        return torch.full((3,), float(index)) @ torch.eye(3), torch.zeros(2)

for loader in (
    torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context="fork"),
    poptorch.DataLoader(options(1), Data(), num_workers=2, multiprocessing_context="fork"),
):
    batches = [batch for batch, _ in loader]
    assert torch.cat(batches)[:, 0].tolist() == list(range(16))
    for batch in batches:
        inference(batch)

def double(values):
    values.mul_(2)
values = torch.arange(4.0).share_memory_()
process = torch.multiprocessing.get_context("fork").Process(target=double, args=(values,))
process.start()
process.join()
assert values.tolist() == [0, 2, 4, 6]
assert process.exitcode == 0
""")
