"""Random numbers of Python and numpy that forward draws while it is captured.

A compiled program cannot draw them again, so that what they decide would be decided once and for all. A number that
only goes into comparisons whose answer is the same for all draws (LayerDrop of 0) does no harm; everything else is
E0101.
"""

import contextlib
import functools
import os
import random
import sys
import threading
import traceback

import torch

from ._errors import userError
from ._generators import HeldGenerators
from ._item_access import exchanged
from ._logging import logger
from ._native import PACKAGE_FOLDERS, isCapturing
from ._raw_reads import userLine

_TORCH = os.path.dirname(torch.__file__) + os.sep
_STATES = ("getstate", "setstate", "get_state", "set_state")
_FUNCTIONS = ("seed", "ranf", "sample")  # of numpy, that are no methods of its generator
_UNIFORM = ("random", "random_sample", "rand", "uniform")


def _refusal(source):
    return userError(
        "E0101",
        f"forward draws random numbers from {source} while it is being captured",
        at=userLine(traceback.walk_stack(None), [*PACKAGE_FOLDERS, _TORCH]),
        found="a number that is another one in every call",
        expected="random numbers of torch, which the device draws in every step",
        remedy="draw with torch.rand and choose with torch.where, or draw before the call and pass the result as an "
        "input; LayerDrop: set its probability to 0",
    )


class _Drawn:
    """Stands for a number drawn from [low, high]: comparisons that all such numbers answer alike are allowed.

    No float, which torch and others would look into without asking.
    """

    def __init__(self, low, high, source):
        self._low, self._high, self._source = low, high, source

    def _compared(self, always, never):
        if always or never:
            return bool(always)
        raise _refusal(self._source)

    def __lt__(self, other):
        return self._compared(self._high < other, self._low >= other)

    def __le__(self, other):
        return self._compared(self._high <= other, self._low > other)

    def __gt__(self, other):
        return self._compared(self._low > other, self._high <= other)

    def __ge__(self, other):
        return self._compared(self._low >= other, self._high < other)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        drawn = next(value for value in (*args, *(kwargs or {}).values()) if isinstance(value, cls))
        raise _refusal(drawn._source)


def _refuse(self, *args):
    raise _refusal(self._source)


for _name in (
    *("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod"),
    *("pow", "rpow", "divmod", "rdivmod", "neg", "pos", "abs", "bool", "int", "float", "trunc", "round", "floor"),
    *("ceil", "eq", "ne", "hash", "array", "format", "reduce_ex"),
):
    setattr(_Drawn, f"__{_name}__", _refuse)


class _Watch:
    """One module of random numbers while forward is captured."""

    def __init__(self, module, source):
        self._module, self._source = module, source
        self._is_seeded = False  # by forward: the same numbers in every call
        self._state = _stateOf(module)
        self.generator = module.random.__self__  # the one behind the functions

    def watched(self):
        """A context in which others stand for the functions of the module."""
        names = [
            name
            for name, value in vars(self._module).items()
            if name in _FUNCTIONS or (name not in _STATES and getattr(value, "__self__", None) is self.generator)
        ]
        makes = {name: functools.partial(self._drawing, name) for name in names}
        makes["seed"] = self._seeding
        return exchanged(*((self._module, name, make) for name, make in makes.items()))

    def drawn(self):
        """Names the module where numbers were drawn another way; "" if none were."""
        return "" if self._is_seeded or _stateOf(self._module) == self._state else self._source

    def renote(self):
        """What was drawn until now does no harm."""
        self._state = _stateOf(self._module)

    def _seeding(self, original):
        def seed(*args, **kwargs):
            if isCapturing() and (args or kwargs):
                requireNoDraw(self)
                self._is_seeded = True
            return original(*args, **kwargs)

        return seed

    def _drawing(self, name, original):
        def draw(*args, **kwargs):
            elsewhere = not isCapturing()
            if elsewhere or self._is_seeded:
                # Nothing is being captured where somebody has kept this function.
                is_known = elsewhere and _active and not self.drawn()
                value = original(*args, **kwargs)
                if is_known:
                    self.renote()  # of another thread, which says so
                return value
            value = original(*args, **kwargs)
            self._state = _stateOf(self._module)
            if name not in _UNIFORM or type(value) is not float:
                raise _refusal(self._source)
            ends = [float(end) for end in (*args, *kwargs.values())] if name == "uniform" else []
            low, high = (ends + [0.0, 1.0][len(ends) :])[:2]
            return _Drawn(min(low, high), max(low, high), self._source)

        return draw


def _stateOf(module):
    state = module.getstate() if module is random else module.get_state(legacy=True)
    return tuple(part.tobytes() if hasattr(part, "tobytes") else part for part in state)


def _runsOf(thread):
    """How often and how long it has run, as Linux writes it; "": it has ended; None: not known."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
            return file.read()
    except OSError:
        return "" if os.path.exists("/proc/self/schedstat") else None


class _Watches:
    """Everything that draws on the host, while one model is captured."""

    def __init__(self):
        modules = [
            _Watch(sys.modules[source], source) for source in ("random", "numpy.random") if source in sys.modules
        ]
        apart = [module.generator for module in modules]
        apart += [one._bit_generator for one in apart if hasattr(one, "_bit_generator")]
        self.held = HeldGenerators(apart)
        self.modules = modules
        self.all = [*modules, self.held]
        # They may draw for themselves; those that forward starts work for it.
        self._thread = threading.get_ident()  # of a thread that Python may not have listed yet
        self._others = {thread: _runsOf(thread) for thread in threading.enumerate() if thread.ident != self._thread}
        self.has_warned = False

    def isHere(self):
        """Does this thread capture?"""
        return threading.get_ident() == self._thread

    def haveOthersRun(self):
        """May a thread have drawn that forward did not start?"""
        return any(runs is None or _runsOf(thread) != runs for thread, runs in self._others.items())


_active = []  # of the captures that are running, the outermost first


def requireNoDraw(*watches):
    """Raises E0101 for numbers that forward has drawn where nobody stands in the way. Where other threads have run,
    which may have drawn them, it warns.

    Args:
        watches: which to ask; none: all of this capture.
    """
    active = _active[-1]
    for watch in watches or active.all:
        source = watch.drawn()
        if not source:
            continue
        if not active.haveOthersRun():
            raise _refusal(source)
        if not active.has_warned:
            logger.warning(
                "%s drew random numbers while forward was captured, and other threads ran: if it was forward that drew "
                "them, they are constants of the program; draw with torch.rand, or pass them as an input",
                source,
            )
        active.has_warned = True


def _refusedSystemDraws():
    """Numbers of the operating system."""

    def drawing(source):
        def make(original):
            def draw(*args, **kwargs):
                if isCapturing():
                    raise _refusal(source)
                return original(*args, **kwargs)

            return draw

        return make

    system, seed = drawing("random.SystemRandom"), drawing("torch.seed")
    return exchanged((random.SystemRandom, "random", system), (torch, "seed", seed), (torch.random, "seed", seed))


@contextlib.contextmanager
def allowedDraws():
    """Around a function that the host runs in every step: its numbers are no part of the program."""
    if not _active or not _active[-1].isHere():
        yield
        return
    requireNoDraw()
    try:
        yield
    finally:
        for watch in _active[-1].all:
            watch.renote()


@contextlib.contextmanager
def refusedDraws():
    """Around forward and backward."""
    active = _Watches()
    with contextlib.ExitStack() as stack:
        for watch in active.all:
            stack.enter_context(watch.watched())
        stack.enter_context(_refusedSystemDraws())
        _active.append(active)
        stack.callback(_active.pop)
        yield
        requireNoDraw()
