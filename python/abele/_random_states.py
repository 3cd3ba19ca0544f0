"""States of the host's default generators: torch's, Python's, and numpy's where it was imported.

A compiled program cannot draw numbers of Python and numpy again, so it would keep the numbers of the capture. The
states of the two generators before and after forward show whether numbers were drawn. If so, forward is captured a
second time, which shows whether the program depends on them (src/compile/compiler.cc). For generators that the program
made itself, the contract in docs/process.md holds.
"""

import contextlib
import random
import sys
import threading

import torch

_thread = threading.local()  # states: of the capture that runs on this thread


def random_states():
    """Name -> state: a tensor, or a tuple of plain values."""
    states = {"torch": torch.get_rng_state(), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    return states


def host_states():
    """The same of Python and numpy alone, by the names of their modules, for comparisons."""
    states = {"random": random.getstate()}
    if "numpy" in sys.modules:
        kind, words, *rest = sys.modules["numpy"].random.get_state()
        states["numpy.random"] = (kind, words.tobytes(), *rest)
    return states


def check_random_states(states):
    """Raises what set_random_states() would raise for these; changes nothing."""
    if "torch" in states:
        torch.Generator().set_state(states["torch"])
    if "random" in states:
        random.Random().setstate(states["random"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.RandomState().set_state(states["numpy"])


def set_random_states(states):
    """Sets those that are there; numpy's only where numpy was imported."""
    if "torch" in states:
        torch.set_rng_state(states["torch"])
    if "random" in states:
        random.setstate(states["random"])
    if "numpy" in states and "numpy" in sys.modules:
        sys.modules["numpy"].random.set_state(states["numpy"])


# Draws while forward is captured --------------------------------------------------------------------------------------
def drawn_source():
    """The module whose numbers were drawn since forward began, by it or by another thread; "": none."""
    now = host_states()
    return next((source for source, state in _thread.states.items() if now[source] != state), "")


@contextlib.contextmanager
def allowed_draws():
    """Around a function that the host runs in every step: the program does not depend on its numbers."""
    before = host_states()
    try:
        yield
    finally:
        if getattr(_thread, "states", None):
            after = host_states()
            _thread.states.update({name: after[name] for name in after if _thread.states.get(name) == before.get(name)})


@contextlib.contextmanager
def noted_draws():
    """Around forward and backward."""
    outer, _thread.states = getattr(_thread, "states", None), host_states()
    try:
        yield
    finally:
        _thread.states = outer
