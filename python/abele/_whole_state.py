"""Parts of a model on the meta device refuse a state_dict() that would lack the tensors of other processes.

The wrapped model checks this itself. Its submodules, and the module of an inferenceModel, are torch's own and check it
through a hook.
"""

import functools
import weakref

from . import wrapping


class _Asks:
    """Runs before a module's state_dict(), and before it is pickled: checks that the module is complete here."""

    def __init__(self, executor):
        self._executor = weakref.ref(executor)

    def _require(self, what):
        executor = self._executor()
        if executor is not None:
            executor._require_complete(what)

    def __call__(self, module, prefix, keep_vars):
        self._require("state_dict()")

    def __deepcopy__(self, memo):
        return self

    def __reduce_ex__(self, protocol):
        self._require("a pickle")
        # A hook of the standard library that does nothing, so that the file loads without this package.
        return functools.partial, (slice,)


def guard(module, executor):
    """From now on the module and its submodules refuse, as the executor does, while the executor lives. Ignores modules
    whose tensors all have memory. Returns: a function that ends it."""
    if not wrapping.has_meta_tensors(module):
        return lambda: None
    handles = [each.register_state_dict_pre_hook(_Asks(executor)) for each in module.modules()]

    def release():
        for handle in handles:
            handle.remove()

    weakref.finalize(executor, release)
    return release
