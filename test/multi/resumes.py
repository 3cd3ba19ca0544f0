"""resumes.py KIND KILLS FOLDER [SECONDS]: a training that is killed at random moments, and goes on each time.

KIND: `alone` is one process with a shuffling loader; `stages` are two processes with a stage each, of which the first
one writes the checkpoints; `parts` are two that each write what they have. A checkpoint is written every few steps. Of
two processes the first, the second or both are killed. A kill may also hit the start: the loading of the checkpoint and
the compilation.

SECONDS: after this time there are no more kills, and the last run goes to its end.

A life is a fork of this process. The first run, which nobody kills, says what it has imported; all of it is imported
here for those that follow, so that a life costs its training alone. This process has one thread and computes nothing.

Ends with an error where a step after a resume has another loss than in a run that was never killed, where a run goes on
from before a checkpoint that was complete, or where the last checkpoint has another bit. Prints what it has seen.
"""

import contextlib
import functools
import hashlib
import importlib
import os
import random
import select
import shutil
import signal
import sys
import time
from pathlib import Path

import abele
import numpy
import poptorch
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from forked import Forked, place_of
from ports import free_port

KIND, KILLS, FOLDER = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
MOST_S = float(sys.argv[4]) if len(sys.argv) > 4 else float("inf")
PROCESSES = 1 if KIND == "alone" else 2
WIDTH, ROWS, ACCUMULATION = 24, 4, 3
LAST, EVERY, KEEP = 60, 4, 3
LIMIT_S = 240  # beyond it a process hangs


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(WIDTH, WIDTH)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.second = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        poptorch.Block.start("first", ipu_id=0)
        hidden = torch.nn.functional.dropout(torch.tanh(self.norm(self.first(x))), 0.3)
        poptorch.Block.start("second", ipu_id=1)
        out = self.second(hidden)
        return out, poptorch.identity_loss((out - x).square(), reduction="mean")


class Steps:
    """The batches: in the order that a shuffling loader chooses, or drawn by the number of the step."""

    def __init__(self, options):
        rows = ROWS * ACCUMULATION
        samples = torch.randn(11 * rows, WIDTH, generator=torch.Generator().manual_seed(3))
        self.loader = None
        if KIND == "alone":
            data = torch.utils.data.TensorDataset(samples)
            self.loader = abele.DataLoader(options, data, batch_size=ROWS, shuffle=True)
        self.samples = samples.split(rows)

    def after(self, step):
        while True:
            if self.loader is None:
                yield self.samples[step % len(self.samples)]
                step += 1
            else:
                for (x,) in self.loader:
                    yield x


def train(rank, port, folder, tell):
    """One life of a process. tell: takes what happened, a line each."""
    if PROCESSES > 1:
        os.environ.update(place_of(rank, PROCESSES, port))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    for generator in (random, numpy.random):  # are in checkpoints too
        generator.seed(1)
    with torch.device("meta" if KIND == "parts" else "cpu"):
        net = Net()
    options = abele.Options().randomSeed(7).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(ACCUMULATION)
    options.threadsPerDevice(1)
    if PROCESSES > 1:
        options.Distributed.configureProcessId(rank, PROCESSES).devicesPerProcess(1)
    steps = Steps(options)
    model = abele.trainingModel(net, options, optimizer=torch.optim.AdamW(net.parameters(), lr=0.01))
    if KIND == "parts":
        abele.init_weights(model, 5)
    found = abele.load_checkpoint(folder, model, steps.loader)
    step = found["step"] if found else 0
    tell(f"from {step}")
    for x in steps.after(step):
        if step == LAST:
            break
        loss = model(x)[1].reshape(())
        step += 1
        tell(f"step {step} {loss.item().hex()}")
        if step % EVERY == 0:
            abele.save_checkpoint(folder, model, steps.loader, step=step, keep=KEEP)
            tell(f"saved {step}")


def lived(rank, port, folder, tell):
    """One life of a process, which ends without the end of an interpreter."""
    status, imported = 1, set(sys.modules)
    try:
        train(rank, port, folder, lambda line: tell(f"{line}\n"))
        imported = ",".join(set(sys.modules) - imported)
        tell(f"imported {imported}\ndone\n")
        status = 0
    except poptorch.Error as error:
        tell(f"heard {error.code} {error.message!r}\n")
    finally:
        os._exit(status)


def lines_of(process):
    return process.text().splitlines()


def live(folder, choose=None):
    """Starts all processes. choose: kills at a random moment. Returns the lines of each, and which were killed."""
    port, processes = free_port(), []
    for rank in range(PROCESSES):
        processes.append(Forked(functools.partial(lived, rank, port, folder), processes, LIMIT_S))
    victims = []
    if choose is not None:
        victims = choose.choice([[0]] if PROCESSES == 1 else [[0], [1], [0, 1]])
        watched = processes[victims[0]]
        lines = choose.choice([0, 1, *range(1, 2 * EVERY + 4)])
        is_alive = True
        while is_alive and len(lines_of(watched)) < lines:
            is_alive = watched.read()
        until = time.monotonic() + choose.random() * (0.01 if lines else 0.2)
        while is_alive and time.monotonic() < until:
            is_alive = watched.read(until - time.monotonic())
        for process in processes:
            while select.select([process.end], [], [], 0)[0] and process.read():
                pass
        if any("step" not in process.text() for process in processes):
            # They may not have found each other yet. Then the others wait for ABELE_PROCESS_TIMEOUT, or until their
            # launcher ends them as well.
            victims = list(range(PROCESSES))
        for victim in victims:
            processes[victim].kill()
    statuses = [process.status() for process in processes]
    for rank, (process, status) in enumerate(zip(processes, statuses, strict=True)):
        lines = lines_of(process)
        was_killed = rank in victims and status == -signal.SIGKILL
        heard = bool(victims) and lines and lines[-1].startswith("heard E0606")
        if not (was_killed or heard or (status == 0 and lines[-1] == "done")):
            raise SystemExit(f"process {rank} ended with {status}: {lines[-3:]}")
    is_done = all(status == 0 for status in statuses)
    return [lines_of(process) for process in processes], is_done


def content_of(path):
    """A file of several has a mark of the save in its name and its header."""
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :] if KIND == "parts" else content


def checkpoint_of(folder):
    """What the files of the last step hold."""
    files = sorted(folder.glob(f"step-{LAST:010}*.safetensors"), key=lambda path: path.name[-27:])
    assert len(files) == (PROCESSES if KIND == "parts" else 1)
    return [hashlib.sha256(content_of(path)).hexdigest() for path in files]


class Run:
    """One training from its beginning to its end, over any number of lives."""

    def __init__(self, folder, expected=None):
        self.folder, self.expected = folder, expected or {}
        self.losses, self.saved, self.moments = {}, 0, {"starting": 0, "training": 0, "saving": 0}

    def take(self, lives):
        for lines in lives:
            for line in lines:
                what, *rest = line.split()
                if what == "from" and int(rest[0]) < self.saved:
                    raise SystemExit(f"goes on from {rest[0]}, though {self.saved} was complete: {self.folder}")
                if what == "step":
                    step, loss = int(rest[0]), rest[1]
                    if self.expected and self.expected[step] != loss:
                        raise SystemExit(f"step {step}: {loss} is not {self.expected[step]}: {self.folder}")
                    self.losses[step] = loss
        # The first process writes what makes a checkpoint complete.
        written = [int(line.split()[1]) for line in lives[0] if line.startswith("saved")]
        self.saved = max([self.saved, *written])
        said = [line for line in lives[0] if not line.startswith("heard")]
        last = (said or [""])[-1].split()
        if last == ["done"]:
            return
        is_saving = last[:1] == ["step"] and int(last[1]) % EVERY == 0
        self.moments["saving" if is_saving else "starting" if last[:1] in ([], ["from"]) else "training"] += 1


def import_all(names):
    for name in names:
        with contextlib.suppress(ImportError):  # what is no file: torch.ops and the like
            importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "forks need a process without other threads"


def main():
    whole = Run(FOLDER / "whole")
    lives, is_done = live(whole.folder)
    whole.take(lives)
    assert is_done and len(whole.losses) == LAST
    import_all(sorted({name for lines in lives for name in lines[-2].removeprefix("imported ").split(",")}))
    files = checkpoint_of(whole.folder)
    choose = random.Random(11)
    kills, runs, moments = 0, 0, {"starting": 0, "training": 0, "saving": 0}
    begin = time.monotonic()

    def goes_on():
        return kills < KILLS and time.monotonic() - begin < MOST_S

    while goes_on():
        run = Run(FOLDER / f"run-{runs}", whole.losses)
        while True:
            # The last life of all is left alone.
            lives, is_done = live(run.folder, choose if goes_on() else None)
            if not is_done:
                kills += 1
            run.take(lives)
            if is_done:
                break
        if checkpoint_of(run.folder) != files:
            raise SystemExit(f"the last checkpoint differs from that of a run that was never killed: {run.folder}")
        # A save that is killed behind its file leaves the oldest one to the next save, which a complete run has not.
        most = KEEP * (len(files) + (KIND == "parts"))  # and an index
        names = sorted(path.name for path in run.folder.iterdir())
        if f"saved {LAST}" in lives[0] and len(names) > most:
            raise SystemExit(f"files that nobody needs are left: {names}")
        for moment, count in run.moments.items():
            moments[moment] += count
        shutil.rmtree(run.folder)
        runs += 1
    took = time.monotonic() - begin
    where = ", ".join(f"{count} while {moment}" for moment, count in moments.items())
    print(f"{kills} kills in {runs} runs of {LAST} steps, {took:.0f} s; they hit {where}")


main()
