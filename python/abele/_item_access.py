"""Replaces members of classes, modules and objects in a context, and restores them at its end."""

import contextlib
import threading

_lock = threading.Lock()
_standing = {}  # (id of owner, name) -> [how many contexts, what it was]


@contextlib.contextmanager
def replaced(name, replacement, owner):
    """A context in which owner has this member; contexts nest."""
    before = vars(owner).get(name)
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


@contextlib.contextmanager
def exchanged(owner, name, make):
    """A context in which owner's member is make(the original), for functions that torch hides from modes
    (_function_rules.py). All threads use the replacement, so it must pass calls of other threads to the original.
    Contexts of threads may overlap.
    """
    key = id(owner), name
    with _lock:
        standing = _standing.setdefault(key, [0, getattr(owner, name)])
        if standing[0] == 0:
            setattr(owner, name, make(standing[1]))
        standing[0] += 1
    try:
        yield
    finally:
        with _lock:
            standing[0] -= 1
            if standing[0] == 0:
                setattr(owner, name, standing[1])
                del _standing[key]
