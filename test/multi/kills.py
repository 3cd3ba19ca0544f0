"""kills.py PROCESSES KILLS HOLD: trains in several processes and kills one of them in the middle, again and again.

HOLD: each process holds `replicas`, or one of the `stages` of one replica.

Prints a line a kill: the process that was killed, what each of the others said and its exit status, the seconds until
all of them had said it, and until the last of them had ended: the end of an interpreter takes a busy machine seconds.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import poptorch
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from ports import freePort

PROCESSES, KILLS, HAS_STAGES = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "stages"
LIMIT_S = 120  # beyond it a process hangs


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(max(2, PROCESSES)))

    def forward(self, x):
        for index, layer in enumerate(self.layers):
            if HAS_STAGES:
                poptorch.Block.start(str(index), ipu_id=index)
            x = torch.tanh(layer(x))
        return x, poptorch.identity_loss(x.square(), reduction="mean")


def train(rank, port, steps):
    """Trains until a process is gone. steps: the end of a pipe that gets a byte a step."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(PROCESSES),
        LOCAL_WORLD_SIZE=str(PROCESSES),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        GLOO_SOCKET_IFNAME="lo",
    )
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Net()
    opts = poptorch.Options()
    opts.Distributed.configureProcessId(rank, PROCESSES)
    if HAS_STAGES:
        opts.Distributed.devicesPerProcess(1)
        opts.Training.gradientAccumulation(2)
        opts._Popart.set("abele.allowShortPipeline", True)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=1e-3))
    x = torch.randn(8, 32)
    try:
        while True:
            executor(x)
            os.write(steps, b".")
    except poptorch.Error as error:
        os.write(steps, error.code.encode())


def fork(rank, port, ends):
    """Returns the process id, and the end of a pipe that tells its steps."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        for end in (*ends, read):
            os.close(end)
        signal.alarm(LIMIT_S)
        try:
            train(rank, port, write)
        finally:
            os.close(write)
        sys.exit(0)
    os.close(write)
    return pid, read


def said(end):
    """The last that a process wrote, all of it taken."""
    text = b""
    while part := os.read(end, 1 << 16):
        text += part
    return text.decode().lstrip(".") or "nothing"


def kill(victim, after):
    """Kills a process after its step `after`. Returns what the others said, and how long they took to say it and to
    end."""
    port, pids, ends = freePort(), [], []
    for rank in range(PROCESSES):
        pid, end = fork(rank, port, ends)
        pids.append(pid)
        ends.append(end)
    seen = 0
    while seen < after:
        part = os.read(ends[victim], after - seen)
        if not part:
            break
        seen += len(part)
    os.kill(pids[victim], signal.SIGKILL)
    begin = time.monotonic()
    answers = [said(end) for rank, end in enumerate(ends) if rank != victim]
    heard = time.monotonic() - begin
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for rank, pid in enumerate(pids)]
    took = time.monotonic() - begin
    for end in ends:
        os.close(end)
    others = [
        f"{text}:{status}" for text, status in zip(answers, statuses[:victim] + statuses[victim + 1 :], strict=True)
    ]
    return others, heard, took


def main():
    chosen = random.Random(5)
    for _ in range(KILLS):
        victim = chosen.randrange(PROCESSES)
        others, heard, took = kill(victim, chosen.randrange(1, 40))
        print(victim, ",".join(others), f"{heard:.3f} {took:.3f}", flush=True)


main()
