"""Hooks around tracing. Source: spec executor.md, section 5."""

import collections
import contextlib
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

from ._errors import refused

_pre = collections.OrderedDict()
_post = collections.OrderedDict()


def _register(hooks, hook):
    if not callable(hook):
        raise refused(RuntimeError, f"a hook must be callable, got {type(hook).__name__}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Calls `hook()` before each trace of a model. Returns: a handle with remove()."""
    return _register(_pre, hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Calls `hook()` after each trace, also if it failed. Returns: a handle with remove()."""
    return _register(_post, hook)


@contextlib.contextmanager
def called_hooks():
    """Around a compilation or the loading of one: calls the hooks in the order of registration."""
    for hook in list(_pre.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_post.values()):
            hook()
