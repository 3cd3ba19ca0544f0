"""Systems that take turns, one timed sample each, each in processes of its own."""

import json
import multiprocessing
import os
import statistics
import subprocess
import time

from .machine import CROWDED, busy_seconds, free_port
from .peers import PEERS
from .systems import serve


class Failed(Exception):
    """A system could not do what it was told."""


def number_of_processes(name):
    return PEERS[name].processes if name in PEERS else 2 if name.endswith("-apart") else 1


class Program:
    """A program that takes the place of serve(): its process and its pipe. Orders are lines of two numbers on its
    input, replies lines of JSON on its output."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.join, self.kill = self.process.wait, self.process.kill

    def send(self, order):
        if order is None:
            self.process.stdin.close()
        else:
            print(*order, file=self.process.stdin, flush=True)

    def recv(self):
        if not (line := self.process.stdout.readline()):
            raise EOFError
        return json.loads(line)


class System:
    """The processes of a system, which all get the same orders. name: as of systems.build. command: of a program that
    is this system. Raises: Failed."""

    def __init__(self, name, workload, command=None):
        self.name = name
        self.failure = ""
        self.samples = []  # (share of others, seconds a step)
        self.pipes, self.processes = [], []
        if command is None:
            self._start(name, workload)
        else:
            self.pipes = self.processes = [Program(command)]
        self.build_s = max(reply["s"] for reply in self._receive())

    def _start(self, name, workload):
        number = number_of_processes(name)
        context, port = multiprocessing.get_context("spawn"), str(free_port())
        for rank in range(number):
            pipe, theirs = context.Pipe()
            variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(number)}
            variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            arguments = (theirs, name, workload, variables if number > 1 else None)
            process = context.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(pipe)
            self.processes.append(process)

    def _ask(self, order):
        try:
            for pipe in self.pipes:
                pipe.send(order)
        except OSError:
            self.kill()
            raise Failed(f"{self.name}: a process died") from None
        return self._receive()

    def _receive(self):
        replies = []
        for pipe in self.pipes:
            try:
                replies.append(pipe.recv())
            except EOFError:
                replies.append({"error": "a process died"})
            if "error" in replies[-1]:
                self.kill()
                raise Failed(f"{self.name}: {replies[-1]['error']}")
        return replies

    def train(self, first, steps):
        """Seconds until the last process was done, processor seconds of all, and losses by step."""
        replies = self._ask((first, steps))
        return {
            "s": max(reply["s"] for reply in replies),
            "cpu_s": sum(reply["cpu_s"] for reply in replies),
            "losses": [self._joined(step) for step in zip(*(reply["losses"] for reply in replies), strict=True)],
        }

    def _joined(self, results):
        """A step's, of what each process told: of a peer each has its part, of ours all have the same or nothing."""
        if self.name in PEERS:
            return [loss for mine in results for loss in mine]
        return next((result for result in results if result), [])

    def sample(self, first, steps):
        wall, busy = time.perf_counter(), busy_seconds()
        reply = self.train(first, steps)
        wall, busy = time.perf_counter() - wall, busy_seconds() - busy
        others = max(0.0, busy - reply["cpu_s"]) / (wall * os.cpu_count())
        self.samples.append((others, reply["s"] / steps))

    def clean(self):
        return [seconds for others, seconds in self.samples if others < CROWDED]

    def kept(self, wanted):
        """The clean samples, filled up with the least crowded ones to the number wanted."""
        seconds = [seconds for _, seconds in sorted(self.samples)]
        return seconds[: max(wanted, len(self.clean()))]

    def median(self, wanted):
        return statistics.median(self.kept(wanted))

    def stop(self):
        replies = self._ask(None)
        self.peak_mib = sum(reply["peak_bytes"] for reply in replies) / 2**20
        self.heap_allocations = replies[0]["heap_allocations"]
        self.placement = replies[0]["placement"]
        for process in self.processes:
            process.join()

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()


def take_turns(systems, first, steps, samples, patience_s):
    """Times all systems in samples of `steps` steps until each has enough clean samples, and stops them. first: the
    steps taken before. A peer that could not go on has a `failure`."""
    until, turn = time.monotonic() + patience_s, 0
    while turn < samples or (time.monotonic() < until and any(len(s.clean()) < samples for s in systems)):
        for system in systems[turn % len(systems) :] + systems[: turn % len(systems)]:
            attempt(system, System.sample, first + turn * steps, steps)
        systems = [system for system in systems if not system.failure]
        turn += 1
    for system in systems:
        attempt(system, System.stop)


def attempt(system, act, *arguments):
    """A peer that fails takes no more turns, and says why; of ours it ends the benchmark."""
    try:
        act(system, *arguments)
    except Failed as error:
        if system.name not in PEERS:
            raise
        system.failure = str(error)
