"""Generators of random numbers that the program holds, while forward is captured: objects of Python and numpy.

Nobody tells when numbers are drawn from them. So their states are compared before and after.
"""

import gc
import itertools
import random
import sys
import tempfile
import traceback
import weakref

from ._item_access import exchanged
from ._native import core, isCapturing


def _kinds():
    """The types of generators whose state can be read; others derive from them."""
    numpy = sys.modules.get("numpy.random")
    return (random.Random,) if numpy is None else (random.Random, numpy.RandomState, numpy.BitGenerator)


class _Alive:
    """Objects of some types, but those of gc.freeze().

    Looking at all objects of a process takes a tenth of a second, so that it is done once. The garbage collector calls
    here before each collection: what it has not looked at before is what leaves the youngest generation then.
    Threads: one collection at a time.
    """

    def __init__(self, kinds):
        self.kinds = kinds
        # All that a call needs, for the collections while the interpreter ends.
        self._instancesOf, self._objects = core().instancesOf, gc.get_objects
        self._reference, self._references = weakref.ref, sys.getrefcount
        self._known = []  # weak references; generators of numpy, which take none, themselves
        self._most = 100
        gc.callbacks.append(self._noteYoung)
        for generation in (1, 2):
            self._note(self._objects(generation=generation))

    def isWatching(self):
        """Has nobody taken its call away?"""
        return self._noteYoung in gc.callbacks

    def end(self):
        """Takes it away."""
        if self.isWatching():
            gc.callbacks.remove(self._noteYoung)

    def all(self):
        """Those that are alive now."""
        known = [one() if isinstance(one, self._reference) else one for one in self._known]
        young = self._instancesOf(self._objects(generation=0), self.kinds)
        return list({id(one): one for one in [*known, *young] if one is not None}.values())

    def _noteYoung(self, phase, info):
        if phase != "start":
            return
        self._note(self._objects(generation=0))
        if len(self._known) > self._most:  # what has ended, and what nobody else has any more
            ours = [self._references(one) for one in [object()]][0]
            self._known = [
                one
                for one in self._known
                if (one() is not None if isinstance(one, self._reference) else self._references(one) > ours)
            ]
            self._most = 2 * len(self._known) + 100

    def _note(self, objects):
        for one in self._instancesOf(objects, self.kinds):
            try:
                self._known.append(self._reference(one))
            except TypeError:
                self._known.append(one)


def _alive():
    """The generators of the program that draw the same numbers after the same seed."""
    global _watched
    kinds = _kinds()
    if _watched is None or _watched.kinds != kinds or not _watched.isWatching():
        if _watched is not None:
            _watched.end()
        _watched = _Alive(kinds)
    return [one for one in _watched.all() if not isinstance(one, random.SystemRandom)]


_watched = None  # from the first capture on


def _frozen(state):
    if isinstance(state, dict):
        return tuple((name, _frozen(part)) for name, part in state.items())
    return state.tobytes() if hasattr(state, "tobytes") else state


def _stateOf(generator):
    if isinstance(generator, random.Random):
        return generator.getstate()
    return _frozen(generator.get_state(legacy=False) if hasattr(generator, "get_state") else generator.state)


def _nameOf(generator):
    """ "'dice', a random.Random": as a module or an object of the program calls it."""
    holders = gc.get_referrers(generator)
    # A Generator of numpy holds the object that has the state.
    outer = [one for one in holders if type(one).__module__.startswith("numpy.random")]
    known = [generator, *outer]
    names = [
        repr(name)
        for holder in itertools.chain(holders, *map(gc.get_referrers, outer))
        for name, value in (holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})).items()
        if isinstance(name, str) and any(value is one for one in known)
    ]
    kind = f"a {type(generator).__module__.lstrip('_')}.{type(generator).__qualname__}"
    return f"{names[0]}, {kind}" if names else kind


def _importsUnderWay():
    """How many imports this thread is in the middle of."""
    codes = (frame.f_code for frame, _ in traceback.walk_stack(None))
    return sum(code.co_name == "_find_and_load" and code.co_filename.startswith("<frozen importlib") for code in codes)


def _namesFiles(generator):
    """Does tempfile choose names by it?"""
    namers = core().instancesOf(gc.get_objects(), (tempfile._RandomNameSequence,))
    return any(vars(one).get("_rng") is generator for one in namers)


def _ordersQuestions(generator):
    """Does sympy choose by it in which order it asks what it knows of a number? All orders give the same answers."""
    return generator is getattr(sys.modules.get("sympy.core.random"), "_assumptions_rng", None)


class HeldGenerators:
    """Those that are alive when forward starts, and those that forward makes without a seed.

    Args:
        apart: generators that somebody else watches.
    """

    def __init__(self, apart):
        self._states = [(one, _stateOf(one)) for one in _alive() if not any(one is other for other in apart)]
        self._drawn_before_seed = []
        self._from_system = []  # numpy's generators that forward makes without a seed; None: not known
        self._imports = _importsUnderWay()

    def drawn(self):
        """Names one that has drawn; "" if none has."""
        changed = (one for one, state in self._states if _stateOf(one) != state)
        for generator in itertools.chain(self._drawn_before_seed, changed):
            if not _ordersQuestions(generator) and not _namesFiles(generator):
                return f"a generator of the program's own ({_nameOf(generator)})"
        return "a generator that forward makes without a seed" if self._hasDrawnEntropy() else ""

    def _hasDrawnEntropy(self):
        return any(generator is None or _hasDrawn(generator) for generator in self._from_system)

    def _isImporting(self):
        """Does forward import a module? It runs once in a process, and so does what it draws."""
        return _importsUnderWay() > self._imports

    def renote(self):
        """What was drawn until now does no harm."""
        self._states = [(one, _stateOf(one)) for one, _ in self._states]
        self._drawn_before_seed.clear()
        self._from_system.clear()

    def watched(self):
        """A context that notices generators that forward seeds."""
        places = [(random.Random, "seed", self._seeding)]
        if hasattr(sys.modules.get("numpy.random.bit_generator"), "randbits"):
            places.append((sys.modules["numpy.random.bit_generator"], "randbits", self._entropy))
        return exchanged(*places)

    def _seeding(self, original):
        def seed(generator, a=None, *args, **kwargs):
            if not isCapturing() or isinstance(generator, random.SystemRandom):
                return original(generator, a, *args, **kwargs)
            known = next((state for one, state in self._states if one is generator), None)
            if known is not None and _stateOf(generator) != known:
                self._drawn_before_seed.append(generator)
            original(generator, a, *args, **kwargs)
            self._states = [(one, state) for one, state in self._states if one is not generator]
            if a is None and not self._isImporting():  # else the same numbers in every call
                self._states.append((generator, _stateOf(generator)))

        return seed

    def _entropy(self, original):
        def randbits(count):
            bits = original(count)
            if isCapturing() and not self._isImporting():
                # Whose they will be: the youngest without a seed, which is being made.
                young = gc.get_objects(generation=0) + gc.get_objects(generation=1)
                kind = sys.modules["numpy.random"].BitGenerator
                made = [one for one in young if isinstance(one, kind) and one.seed_seq is None]
                self._from_system.append(made[-1] if made else None)
            return bits

        return randbits


def _hasDrawn(generator):
    """Has one of numpy's drawn numbers since it was seeded from the operating system?"""
    seed = generator.seed_seq
    if seed is None:  # it was seeded with a number since (RandomState does so)
        return False
    fresh = type(generator)(type(seed)(seed.entropy, spawn_key=seed.spawn_key, pool_size=seed.pool_size))
    return _stateOf(generator) != _stateOf(fresh)
