"""Calls of several threads on one executor wait for each other."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])


def one_at_a_time(method: _Method) -> _Method:
    """A method that runs while its object's `_lock` is held: the turns of its native model.

    Threads get the lock in the order of their requests, and the thread that holds it may take it again. The workers of
    a step belong to the thread that called it. Waiting threads can be interrupted. If the holder waits for a lock of
    this thread, the wait could never end, and E0608 is raised.
    """

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        with self._lock:
            return method(self, *args, **kwargs)

    return call
