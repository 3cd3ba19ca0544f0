"""States of the host's default generators: torch's, Python's, and numpy's where it was imported."""

import random
import sys

import torch


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
