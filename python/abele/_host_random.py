"""Random numbers of Python and numpy that forward draws while it is captured.

A compiled program cannot draw them again, so that what they decide would be decided once and for all. The states of the
process's two generators before and after forward tell that somebody has drawn; then forward is captured a second time,
which shows whether the program depends on them (src/compile/compiler.cc). Generators of the program's own: the contract
in docs/process.md.
"""

import contextlib
import threading

from ._random_states import hostStates

_thread = threading.local()  # states: of the capture that runs on this thread


def drawnSource():
    """The module whose numbers were drawn since forward began, by it or by another thread; "": none."""
    now = hostStates()
    return next((source for source, state in _thread.states.items() if now[source] != state), "")


@contextlib.contextmanager
def allowedDraws():
    """Around a function that the host runs in every step: its numbers are no part of the program."""
    before = hostStates()
    try:
        yield
    finally:
        if getattr(_thread, "states", None):
            after = hostStates()
            _thread.states.update({name: after[name] for name in after if _thread.states.get(name) == before.get(name)})


@contextlib.contextmanager
def notedDraws():
    """Around forward and backward."""
    outer, _thread.states = getattr(_thread, "states", None), hostStates()
    try:
        yield
    finally:
        _thread.states = outer
