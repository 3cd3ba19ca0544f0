"""Objects of a program's own classes among arguments and results, as the caches of keys and values of language models.

Such an object is opened: the tensors that it reaches become inputs, and forward gets an object like it that holds those
of its micro-batch. What forward then puts into it, every call puts into the object that it was given. Objects that
forward returns are made anew by every call.

Source: ours; eager PyTorch, where forward changes the caller's objects.
"""

import contextlib
import enum
import itertools
import types
import weakref

import torch

from . import structures

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum)
_CLOSED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, torch.nn.Module)
_MAX_ENTRIES = 10_000

_openable = weakref.WeakKeyDictionary()  # of classes


def _isOpenable(kind):
    """Can an object of this class be made of nothing but its attributes?"""
    if kind not in _openable:
        slots = {name for base in kind.__mro__ for name in _asTuple(vars(base).get("__slots__", ()))}
        made = None
        if not hasattr(kind, "__del__") and slots <= {"__dict__", "__weakref__"}:
            with contextlib.suppress(TypeError):  # an abstract class, or one that needs more
                made = object.__new__(kind)
        _openable[kind] = type(getattr(made, "__dict__", None)) is dict
    return _openable[kind]


def _asTuple(slots):
    return (slots,) if isinstance(slots, str) else slots


def isObject(value):
    """Is it of a class of the program, with attributes that may hold tensors?"""
    if isinstance(value, (*_PLAIN, *_CLOSED, torch.Tensor, list, tuple, dict, weakref.ref)):
        return False
    return structures.parserFor(value) is None and _isOpenable(type(value))


class _TooMuch(Exception):
    """An object reaches so much that it is left as it is."""


class _Entry:
    """An object or container of a graph. Leaves are (kind, what): a "tensor" by its index, another entry by its number
    ("entry", or "weak" for a weak reference), a "given" tensor of the call, or a "value"."""

    __slots__ = ("is_tuple", "shell", "keys", "leaves", "original")

    def __init__(self, value):
        self.is_tuple = isinstance(value, tuple)
        self.shell = _shellOf(value)  # makes one without contents, or, of tuples, one of its items
        self.keys, self.leaves = None, []  # keys: of attributes or of a dictionary; None: of a list or tuple
        self.original = None  # where it reaches no tensor: the value itself stands in the graph


class SlotOf:
    """Stands in a structure for the object of this number."""

    __slots__ = ("number",)

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return type(other) is SlotOf and other.number == self.number

    __hash__ = None

    def __repr__(self):
        return f"object {self.number}"


class Opened:
    """Objects and all that they reach.

    Args:
        built: the objects that forward was given and has used since. None: there are none.
        isOutput: which tensors a call makes anew; others are values.
    """

    def __init__(self, built=None, isOutput=lambda tensor: True):
        self.tensors, self.entries, self.roots = [], [], []
        self.values = [] if built is None else list(built.values)  # by number
        self._first = len(self.values)
        self._isOutput = isOutput
        self._leaves = {id(value): ("entry", number) for number, value in enumerate(self.values)}
        self.updates = {}
        if built is not None:
            self._leaves |= {id(tensor): ("given", index) for index, tensor in enumerate(built.tensors)}
            for number, entry in enumerate(built.entries):
                keys, leaves = self._contentsOf(self.values[number])
                was = [("given", what) if kind == "tensor" else (kind, what) for kind, what in entry.leaves]
                if keys != entry.keys or not _sameLeaves(was, leaves):
                    self.updates[number] = keys, leaves
            self._leaveCounts(built)

    def _leaveCounts(self, built):
        """What forward only counts in objects without tensors happens once, as everything that Python does."""
        used = {number for number in self.updates if built.entries[number].original is not None}
        leaves = [leaf for number in used for leaf in self.updates[number][1]]
        if not any(kind in ("tensor", "given") or (kind == "entry" and what >= self._first) for kind, what in leaves):
            for number in used:
                del self.updates[number]

    @structures.typedNesting
    def add(self, value):
        """Opens one. Returns: what stands for it in a structure."""
        self.roots.append(self._leafOf(value))
        return SlotOf(len(self.roots) - 1)

    def knows(self, value):
        """Was it opened before?"""
        return id(value) in self._leaves

    def _leafOf(self, value):
        known = self._leaves.get(id(value))
        if known is not None:
            return known
        if isinstance(value, torch.Tensor):
            if not self._isOutput(value):
                return "value", value
            self.tensors.append(value)
            leaf = "tensor", len(self.tensors) - 1
        elif isinstance(value, weakref.ref):
            target = self._leaves.get(id(value()), ("", None))
            return ("weak", target[1]) if target[0] == "entry" else ("value", value)
        elif isinstance(value, list | tuple | dict) or isObject(value):
            return self._enter(value)
        else:
            return "value", value
        self._leaves[id(value)] = leaf
        return leaf

    def _enter(self, value):
        if isinstance(value, _PLAIN):  # torch.Size is a tuple
            return "value", value
        number = len(self.values)
        if number >= _MAX_ENTRIES:
            raise _TooMuch
        leaf = "entry", number
        self.values.append(value)
        self._leaves[id(value)] = leaf
        entry = _Entry(value)
        self.entries.append(entry)
        entry.keys, entry.leaves = self._contentsOf(value)
        return leaf

    def _contentsOf(self, value):
        """(keys, leaves) of it as it is now."""
        if isinstance(value, list | tuple):
            return None, [self._leafOf(item) for item in value]
        held = value if isinstance(value, dict) else vars(value)
        return list(held), [self._leafOf(item) for item in held.values()]

    # Calls ------------------------------------------------------------------------------------------------------------
    def settle(self):
        """Notes which objects reach no tensor: those are used as they are. Call it when all are added."""
        reaching = {number for number, entry in enumerate(self.entries) if any(k == "tensor" for k, _ in entry.leaves)}
        users = {}
        for number, entry in enumerate(self.entries):
            for kind, what in entry.leaves:
                if kind in ("entry", "weak"):
                    users.setdefault(what, []).append(number)
        found = list(reaching)
        while found:
            new = [user for user in users.get(found.pop(), ()) if user not in reaching]
            reaching.update(new)
            found += new
        for number, entry in enumerate(self.entries):
            if number not in reaching:
                entry.original = self.values[number]
        self.text = " ".join(map(self._textOf, range(len(self.entries)))) + f" {self.roots}"

    def _textOf(self, number):
        """What tells the program for this object from others."""
        entry, is_root = self.entries[number], ("entry", number) in self.roots
        if is_root and entry.original is not None and type(entry.original).__repr__ is object.__repr__:
            return repr(entry.original)
        leaves = [
            what if isinstance(what, _PLAIN) else f"{type(what).__name__}@{id(what):x}" for _, what in entry.leaves
        ]
        kind = type(self.values[number])
        return f"{kind.__module__}.{kind.__qualname__}@{id(kind):x}{entry.keys}{[k for k, _ in entry.leaves]}{leaves}"

    def copyWith(self, tensors):
        """The same with these tensors."""
        copy = Opened()
        copy.entries, copy.roots, copy.tensors, copy.text = self.entries, self.roots, list(tensors), self.text
        return copy

    def release(self):
        """Keeps no tensor of what it was made of."""
        self.values, self._leaves, self.tensors = [], {}, [None] * len(self.tensors)

    def build(self):
        """Makes the objects that forward gets."""
        self.values = _Building(self, [], [], self.tensors).values

    def finish(self, given, outputs):
        """Changes the call's objects as forward did.

        Args:
            given: of the call; None: it had none.
            outputs: the tensors of this call's results, in the order of `tensors`.
        Returns: the object of each slot.
        """
        known, tensors = ([], []) if given is None else (given.values, given.tensors)
        building = _Building(self, known, tensors, outputs)
        for number, (keys, leaves) in self.updates.items():
            _fill(known[number], keys, list(map(building.of, leaves)))
        return [building.of(root) for root in self.roots]


def _sameLeaves(a, b):
    return len(a) == len(b) and all(map(_sameLeaf, a, b))


def _sameLeaf(a, b):
    if a[0] != b[0]:
        return False
    return a[1] is b[1] or (isinstance(a[1], _PLAIN) and type(a[1]) is type(b[1]) and a[1] == b[1])


def _shellOf(value):
    """A function that makes a value of the same class without its contents; of a tuple one of its items."""
    kind = type(value)
    if isinstance(value, tuple):
        return (lambda items: kind(*items)) if hasattr(kind, "_fields") else kind
    if isinstance(value, list | dict):
        if kind in (list, dict):
            return kind
        others = dict(vars(value)) if hasattr(value, "__dict__") else {}
        if isinstance(value, dict):
            others = {name: one for name, one in others.items() if name not in value}
        factory = getattr(value, "default_factory", None)

        def make():
            made = kind.__new__(kind)
            if factory is not None:
                made.default_factory = factory
            vars(made).update(others) if others else None
            return made

        return make
    return lambda: object.__new__(kind)


def _fill(value, keys, items):
    """Gives an object or container its contents."""
    if isinstance(value, tuple):
        return
    if keys is None:
        value[:] = items
        return
    if not isinstance(value, dict):
        held = vars(value)
        held.clear()
        held.update(zip(keys, items, strict=True))
        return
    for key in [key for key in value if key not in keys]:
        dict.__delitem__(value, key)
    for key, item in zip(keys, items, strict=True):
        value[key] = item


class _Building:
    """Makes the entries of a graph. known: the values of the first numbers; given: the tensors of the call."""

    def __init__(self, opened, known, given, tensors):
        self._given, self._tensors = given, tensors
        self._first, self._entries = len(known), opened.entries
        self.values = [*known, *(None for _ in opened.entries)]
        for number, entry in enumerate(opened.entries, self._first):
            if entry.original is not None:
                self.values[number] = entry.original
            elif not entry.is_tuple:
                self.values[number] = entry.shell()
        for number, entry in enumerate(opened.entries, self._first):
            if entry.original is None:
                value = self._valueOf(number)
                _fill(value, entry.keys, [] if isinstance(value, tuple) else list(map(self.of, entry.leaves)))

    def _valueOf(self, number):
        if self.values[number] is None:
            entry = self._entries[number - self._first]
            self.values[number] = entry.shell(list(map(self.of, entry.leaves)))
        return self.values[number]

    def of(self, leaf):
        """The value of a leaf."""
        kind, what = leaf
        if kind == "tensor":
            return self._tensors[what]
        if kind == "given":
            return self._given[what]
        if kind == "entry":
            return self._valueOf(what)
        return weakref.ref(self.values[what]) if kind == "weak" else what


class _OpenedParser(structures.ICustomArgParser):
    """Its tensors are those of an argument."""

    def yieldTensors(self, struct):
        yield from struct.tensors

    def reconstruct(self, original_structure, tensor_iterator):
        return original_structure.copyWith([next(tensor_iterator) for _ in original_structure.tensors])


structures.registerOwnParser(Opened, _OpenedParser())


def _replaced(structure, replace):
    """A structure with what replace() gives for its objects, where that is not None."""
    found = []

    def isReplaced(value):
        if isinstance(value, (*_PLAIN, torch.Tensor)) or not isObject(value):
            return False
        new = replace(value)
        if new is not None:
            found.append(new)
        return new is not None

    return structures.reconstructTensorStructure(structure, (found.pop() for _ in itertools.count()), isReplaced)


def openCall(given):
    """Opens the objects among the arguments of a call.

    Args:
        given: (positional, named) arguments.
    Returns: (arguments as the program has them, the Opened; None: there are no objects).
    """
    opened = Opened()
    with contextlib.suppress(_TooMuch):
        positional, named = _replaced(given, opened.add)
        if opened.roots:
            opened.settle()
            return ([*positional, opened.text, opened], named), opened
    return given, None


def closeCall(positional, named):
    """The arguments of forward from those of the program.

    Returns: (positional, named, the Opened that holds what forward gets)
    """
    if not positional or not isinstance(positional[-1], Opened):
        return positional, named, None
    *positional, _, opened = positional
    opened.build()
    return *_filled((positional, named), [opened.values[what] for _, what in opened.roots]), opened


def _filled(structure, objects):
    slots = []

    def isSlot(value):
        if type(value) is SlotOf:
            slots.append(objects[value.number])
        return type(value) is SlotOf

    return structures.reconstructTensorStructure(structure, (slots.pop() for _ in itertools.count()), isSlot)


def openResult(result, built, isOutput):
    """Opens the objects that forward returned, or changed.

    Args:
        built: what closeCall() gave.
        isOutput: which tensors a call makes anew.
    Returns: (the result as the program has it, the Opened; None: there are none).
    """
    after = Opened(built, isOutput)

    def replace(value):
        return after.add(value) if after.knows(value) or tensorsIn(value, isOutput) else None

    result = _replaced(result, replace)
    return (result, after) if after.roots or after.updates else (result, None)


def closeResult(result, after, given, outputs):
    """What forward would have returned, once the call's objects are as forward leaves them."""
    return _filled(result, after.finish(given, outputs))


def tensorsIn(value, isOutput=lambda tensor: True):
    """The tensors that an object reaches, where it can be opened."""
    opened = Opened(isOutput=isOutput)
    try:
        if isObject(value):
            opened.add(value)
    except _TooMuch:
        return []
    return opened.tensors


def marksOf(given):
    """What the arguments of a call hold in objects: (marks, the tensors, which the marks need alive).

    For programs that take such objects as they are.
    """
    marks, tensors = [], []
    for leaf in filter(isObject, structures.otherLeaves(given)):
        opened = Opened()
        with contextlib.suppress(_TooMuch):
            opened.add(leaf)
            opened.settle()
            versions = [(id(tensor), 0 if tensor.is_inference() else tensor._version) for tensor in opened.tensors]
            marks.append((opened.text, versions) if versions else None)
            tensors += opened.tensors
    return marks, tensors
