"""spec data.md, section 4: how the process of an asynchronous loader ends."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import poptorch
import pytest
import torch
from poptorch import AsynchronousDataAccessor, SharingStrategy

PYTHON = Path(poptorch.__file__).parents[1]


class Stuck:
    def __iter__(self):
        yield torch.zeros(1)
        multiprocessing.get_context("fork").Semaphore(0).acquire()  # for ever


@contextlib.contextmanager
def interrupts_are(handler):
    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.spec("data/4/terminate")
@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "handled"])
def test_a_stuck_worker_is_interrupted(monkeypatch, handler):
    """Also in a program that a shell started in the background, where interrupts are ignored."""
    monkeypatch.setattr("abele._async_accessor._JOIN_SECONDS", 0.1)
    with interrupts_are(handler):
        made = AsynchronousDataAccessor(Stuck(), sharing_strategy=SharingStrategy.Fork, early_preload=True)
        process = made._worker.process
        made.terminate()
    assert not process.is_alive() and process.exitcode == 0


PROGRAM = """
    import os, signal, sys, threading
    import poptorch, torch

    class Both:
        def __iter__(self):
            loaders = iter(torch.utils.data.DataLoader(range(2), num_workers=1))
            yield next(loaders)
            both = {signal.SIGINT, signal.SIGCHLD}
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                signal.pthread_kill(threading.get_ident(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)

    def main(strategy):
        data = torch.utils.data.TensorDataset(*[torch.arange(512)] * 100)  # most of the time a tensor is handed over
        loader = poptorch.DataLoader(poptorch.Options(), data, mode=poptorch.DataLoaderMode.Async, num_workers=1,
                                     async_options={"sharing_strategy": strategy})
        next(iter(loader))
        return loader

    if __name__ == "__main__":
        if sys.argv[2] == "both":
            strategy = poptorch.SharingStrategy(int(sys.argv[1]))
            accessor = poptorch.AsynchronousDataAccessor(Both(), sharing_strategy=strategy)
            next(iter(accessor))
            accessor._worker.process.join()
            print("ended")
            sys.exit()
        keep = main(int(sys.argv[1]))
        try:
            print(keep._accessor._worker.process.pid, flush=True)
            while sys.argv[2] == "interrupted":
                for _ in keep:
                    pass
        except KeyboardInterrupt:
            sys.exit(3)
"""


@contextlib.contextmanager
def run(tmp_path, *arguments):
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    with interrupts_are(signal.default_int_handler):  # the program would inherit that they are ignored
        program = subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**os.environ, "PYTHONPATH": str(PYTHON)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    with program:
        try:
            yield program
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)  # one that did not end, with what it started


@pytest.mark.spec("data/4/interrupts", "data/4/terminate")
def test_interrupts_are_quiet(tmp_path):
    with run(tmp_path, "2", "interrupted") as program:
        pid = int(program.stdout.readline())
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 3 and "Traceback" not in errors
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.spec("data/4/interrupts")
def test_an_interrupt_and_the_end_of_a_loader_at_once_are_quiet(tmp_path):
    """The worker hears of both at the same moment."""
    with run(tmp_path, "2", "both") as program:
        output, errors = program.communicate(timeout=60)
    assert output == "ended\n" and errors == ""


@pytest.mark.spec("data/4/interrupts")
def test_loaders_of_an_interrupted_process_are_quiet(tmp_path):
    """One whose tensor is being taken would report the broken connection."""
    with run(tmp_path, "2", "interrupted") as program:
        os.kill(int(program.stdout.readline()), signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 1 and "worker thread died" in errors
    assert errors.count("Traceback") == 1


@pytest.mark.spec("data/4/terminate")
def test_workers_end_with_the_program(tmp_path):
    with run(tmp_path, "3", "ends") as program:
        output, errors = program.communicate(timeout=60)
    assert program.returncode == 0 and errors == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(output), 0)
