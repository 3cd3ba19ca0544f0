"""Random numbers of Python and numpy that forward draws while it is captured.

A compiled program cannot draw them again, so it would keep what they decided in the capture. The states of the
process's two generators before and after forward show whether numbers were drawn. If so, forward is captured a second
time, which shows whether the program depends on them (src/compile/compiler.cc). For generators that the program made
itself, the contract in docs/process.md holds.
"""

import contextlib
import threading

from ._random_states import host_states

_thread = threading.local()  # states: of the capture that runs on this thread


def drawn_source():
    """The module whose numbers were drawn since forward began, by it or by another thread; "": none."""
    now = host_states()
    return next((source for source, state in _thread.states.items() if now[source] != state), "")


@contextlib.contextmanager
def allowed_draws():
    """Around a function that the host runs in every step: its numbers are no part of the program."""
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
