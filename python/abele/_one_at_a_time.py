"""Calls of several threads on one executor wait for each other."""

import functools


def oneAtATime(method):
    """A method that runs while its object's `_lock` is held. The lock is reentrant."""

    @functools.wraps(method)
    def call(self, *args, **kwargs):
        with self._lock:
            return method(self, *args, **kwargs)

    return call
