"""Objects of a program's own classes among arguments and results, such as caches of keys and values of language models.

Such an object is opened: the tensors that it reaches become inputs, and forward gets a similar object with the tensors
of its micro-batch. Every call applies forward's changes to the object that it was given. Every call makes the objects
that forward returns again.

Source: ours; eager PyTorch, where forward changes the caller's objects.
"""

import array
import collections
import contextlib
import dataclasses
import enum
import hashlib
import types
import weakref

import torch

from . import structures

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, enum.Enum)
_CLOSED = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, torch.nn.Module)
CHANGEABLE = (set, bytearray, array.array, collections.deque)  # changed in place, as are arrays of numpy
_OTHERS = (*_PLAIN, *_CLOSED, torch.Tensor, list, tuple, dict, weakref.ref)
_MAX_ENTRIES = 10_000

# Modules whose values have complete texts. The texts of other classes may leave out values that forward reads.
_SAY_ALL = frozenset({"builtins", "array", "datetime", "decimal", "fractions", "pathlib", "torch"})
_SIMPLE = frozenset({bool, int, float, str, type(None)})
_ITEMS = (list, tuple, set, frozenset, collections.deque)
_kinds = weakref.WeakKeyDictionary()  # class: its slots; None: its objects are not opened
_LEFT = _SIMPLE | {torch.Tensor, torch.nn.Parameter, torch.dtype, torch.device}


def _slots_of(kind):
    """The slots of a class whose objects can be made from their attributes alone; None for other classes."""
    if kind not in _kinds:
        made = None
        if not hasattr(kind, "__del__"):
            with contextlib.suppress(TypeError):  # an abstract class, or one whose __new__ needs arguments
                made = _empty_of(kind)
        members = [one for base in kind.__mro__ if "__slots__" in vars(base) for one in vars(base).values()]
        slots = [one for one in members if isinstance(one, types.MemberDescriptorType)]
        has_attributes = type(getattr(made, "__dict__", None)) is dict
        _kinds[kind] = slots if has_attributes or (slots and made is not None) else None
    return _kinds[kind]


def _empty_of(kind):
    return (types.SimpleNamespace if issubclass(kind, types.SimpleNamespace) else object).__new__(kind)


def _attributes_of(value):
    """All attributes and slots by name."""
    held = dict(getattr(value, "__dict__", ()))
    for slot in _slots_of(type(value)) or ():
        with contextlib.suppress(AttributeError):  # the slot is empty
            held[slot] = slot.__get__(value)
    return held


def _set_attributes(value, held):
    if hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update((name, item) for name, item in held.items() if isinstance(name, str))
    for slot in _slots_of(type(value)):
        if slot in held:
            slot.__set__(value, held[slot])
        else:
            with contextlib.suppress(AttributeError):
                slot.__delete__(value)


def is_object(value):
    """True for an object of a class of the program, with attributes that may hold tensors."""
    if isinstance(value, _OTHERS):
        return False
    return structures.parser_for(value) is None and _slots_of(type(value)) is not None


def _has_object(structure):
    """True if the structure holds such an object. Must be fast (below 1 us), because every call with tensors in tuples
    calls it."""
    kind = type(structure)
    if kind in _LEFT:
        return False
    if kind is dict:
        return any(map(_has_object, structure.values()))
    if kind is tuple or kind is list:
        return any(map(_has_object, structure))
    return isinstance(structure, tuple | list | dict) or is_object(structure)


def is_array(value):
    """True for an array or a number of numpy."""
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def text_of_array(value):
    """A text that identifies the contents. numpy's own text leaves out digits and elements."""
    return f"{value.dtype}{list(value.shape)}{hashlib.sha256(value.tobytes()).hexdigest()}"


def _text_of_tensor(tensor):
    """A text that identifies a constant tensor of the program by its elements."""
    if tensor.layout != torch.strided or tensor.is_meta:
        return f"Tensor@{id(tensor):x}"
    with torch.no_grad():
        elements = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return f"{tensor.dtype}{list(tensor.shape)}{hashlib.sha256(elements.numpy().tobytes()).hexdigest()}"


def kind_text(kind):
    """A text that identifies a class while the class lives, because several classes may have the same name."""
    return f"{kind.__qualname__}@{id(kind):x}"


def says_all(value):
    """Whether the text of the value identifies it. This may not hold for items of containers."""
    return type(value).__module__ in _SAY_ALL and not isinstance(value, (*_ITEMS, dict, type, torch.Tensor))


def text_of_items(kind, items):
    """A text that identifies a container by its class and its items, in their order."""
    return f"{kind.__name__}({', '.join(map(text_of, items))})"


def text_of(value):
    """A text that identifies a constant of a program while the values live."""
    kind = type(value)
    if kind in _SIMPLE:
        return repr(value)
    if is_array(value):
        return text_of_array(value)
    if isinstance(value, types.MethodType):
        return f"{text_of(value.__func__)} of {text_of(value.__self__)}"
    if isinstance(value, torch.Tensor):
        return _text_of_tensor(value)
    if kind in _ITEMS:
        return f"{text_of_items(kind, value)}{getattr(value, 'maxlen', '')}"
    if kind is dict:
        return f"{{{', '.join(f'{text_of(key)}: {text_of(item)}' for key, item in value.items())}}}"
    return repr(value) if says_all(value) else f"{kind.__qualname__}@{id(value):x}"


@structures.typed_nesting
def plain_text(value):
    """A text of the plain values that an object reaches by attributes and items, which its parser does not show."""
    if isinstance(value, Opened):
        return ""
    seen, found = {}, []

    def visit(path, part):
        if isinstance(part, (*_PLAIN, *CHANGEABLE, frozenset)) or is_array(part):
            found.append(f"{path}={text_of(part)}")
        elif not isinstance(part, torch.Tensor) and id(part) not in seen and len(seen) < _MAX_ENTRIES:
            seen[id(part)] = part
            for name, item in _parts_of(part):
                visit(f"{path}.{text_of(name)}", item)

    visit("", value)
    return " ".join(found)


def _parts_of(value):
    """(name, part) of the object's contents; nothing for objects that are not opened."""
    if not isinstance(value, dict | list | tuple) and structures.parser_for(value) is None and not is_object(value):
        return ()
    keys, parts = _held_by(value)
    return zip(range(len(parts)) if keys is None else keys, parts, strict=True)


class _TooMuch(Exception):
    """Raised for an object that reaches too many others to be opened."""


class _Entry:
    """An object or container of a graph. Leaves are (kind, what): a "tensor" by its index, another entry by its number
    ("entry", or "weak" for a weak reference), a "given" tensor of the call, or a "value"."""

    __slots__ = ("is_tuple", "shell", "keys", "leaves", "original")

    def __init__(self, value):
        self.is_tuple = isinstance(value, tuple)
        self.shell = _shell_of(value)  # makes one without contents; for a tuple, from its items
        self.keys, self.leaves = None, []  # keys of attributes or of a dictionary; None for a list or tuple
        self.original = None  # the value itself, if it reaches no tensor


@dataclasses.dataclass(slots=True)
class SlotOf:
    """Replaces the object of this number in a structure."""

    number: int

    def __repr__(self):
        return f"object {self.number}"


class Opened:
    """Objects and all that they reach.

    Args:
        built: the objects that forward was given and has used since. None: no objects.
        is_output: tells which tensors each call makes again; other tensors are values.
    """

    def __init__(self, built=None, is_output=lambda tensor: True):
        self.tensors, self.entries, self.roots = [], [], []
        self.values = [] if built is None else list(built.values)  # by number
        self._is_output = is_output
        self._leaves = {id(value): ("entry", number) for number, value in enumerate(self.values)}
        self.updates, self.text = {}, ""
        if built is not None:
            self._leaves |= {id(tensor): ("given", index) for index, tensor in enumerate(built.tensors)}
            for number, entry in enumerate(built.entries):
                keys, leaves = self._contents_of(self.values[number])
                was = [("given", what) if kind == "tensor" else (kind, what) for kind, what in entry.leaves]
                if keys != entry.keys or not _same_leaves(was, leaves):
                    self.updates[number] = keys, leaves

    @structures.typed_nesting
    def add(self, value):
        """Opens an object. Returns: its replacement in a structure."""
        self.roots.append(self._leaf_of(value))
        return SlotOf(len(self.roots) - 1)

    def knows(self, value):
        """True if the object was opened before."""
        return id(value) in self._leaves

    def _leaf_of(self, value):
        known = self._leaves.get(id(value))
        if known is not None:
            return known
        if isinstance(value, torch.Tensor):
            if not self._is_output(value):
                return "value", value
            self.tensors.append(value)
            leaf = "tensor", len(self.tensors) - 1
        elif isinstance(value, weakref.ref):
            target = self._leaves.get(id(value()), ("", None))
            return ("weak", target[1]) if target[0] == "entry" else ("value", value)
        elif isinstance(value, list | tuple | dict) or is_object(value):
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
        entry.keys, entry.leaves = self._contents_of(value)
        return leaf

    def _contents_of(self, value):
        """(keys, leaves) of it as it is now."""
        keys, items = _held_by(value)
        return keys, list(map(self._leaf_of, items))

    @contextlib.contextmanager
    def as_given(self):
        """A context in which the objects of the graph have their contents of the time when they were opened."""

        def item_of(leaf):
            kind, what = leaf
            return self.values[what] if kind == "entry" else weakref.ref(self.values[what]) if kind == "weak" else what

        own = [entry for entry in self.entries if entry.original is not None]
        now = [_held_by(entry.original) for entry in own]
        for entry in own:
            _fill(entry.original, entry.keys, list(map(item_of, entry.leaves)))
        try:
            yield
        finally:
            for entry, (keys, items) in zip(own, now, strict=True):
                _fill(entry.original, keys, items)

    # Calls ------------------------------------------------------------------------------------------------------------
    def settle(self):
        """Notes which objects reach no tensor, because those are used as they are. Call it after all add()."""
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
        self.text = " ".join(map(self._text_of, range(len(self.entries)))) + f" {self.roots}"

    def _text_of(self, number):
        """A text that identifies this object for the program."""
        entry = self.entries[number]
        keys = None if entry.keys is None else list(map(text_of, entry.keys))
        leaves = [(kind, text_of(what)) for kind, what in entry.leaves]
        return f"{kind_text(type(self.values[number]))}{keys}{leaves}"

    def copy_with(self, tensors):
        """A copy with these tensors."""
        copy = Opened()
        copy.entries, copy.roots, copy.tensors, copy.text = self.entries, self.roots, list(tensors), self.text
        return copy

    def release(self):
        """Drops the tensors that it was made from."""
        self.values, self._leaves, self.tensors = [], {}, [None] * len(self.tensors)

    def build(self):
        """Makes the objects that forward gets."""
        self.values = _Building(self, [], [], self.tensors).values

    def finish(self, given, outputs):
        """Applies forward's changes to the call's objects.

        Args:
            given: the call's objects; None: it has none.
            outputs: the tensors of this call's results, in the order of `tensors`.
        Returns: the object of each slot.
        """
        known, tensors = ([], []) if given is None else (given.values, given.tensors)
        building = _Building(self, known, tensors, outputs)
        for number, (keys, leaves) in self.updates.items():
            _fill(known[number], keys, list(map(building.of, leaves)))
        return [building.of(root) for root in self.roots]


def _held_by(value):
    """(keys, items) of an object or container; the keys of a list or tuple are None."""
    if isinstance(value, list | tuple):
        return None, list(value)
    held = value if isinstance(value, dict) else _attributes_of(value)
    return list(held), list(held.values())


def _same_leaves(a, b):
    return len(a) == len(b) and all(map(_same_leaf, a, b))


def _same_leaf(a, b):
    if a[0] != b[0]:
        return False
    return a[1] is b[1] or (isinstance(a[1], _PLAIN) and text_of(a[1]) == text_of(b[1]))


def _shell_of(value):
    """A function that makes a value of the same class without its contents; for a tuple, from its items."""
    kind = type(value)
    if isinstance(value, tuple):
        return kind._make if hasattr(kind, "_fields") else kind
    if kind in (list, dict):
        return kind
    if not isinstance(value, list | dict):
        return lambda: _empty_of(kind)
    held = getattr(value, "__dict__", {})
    is_own = held is value  # its attributes are its items
    others = {} if is_own else {name: one for name, one in held.items() if isinstance(value, list) or name not in value}
    factory = getattr(value, "default_factory", None)

    def make():
        made = kind.__new__(kind)
        if is_own:
            made.__dict__ = made
        if factory is not None:
            made.default_factory = factory
        vars(made).update(others) if others else None
        return made

    return make


def _fill(value, keys, items):
    """Fills an object or container with its contents."""
    if isinstance(value, tuple):
        return
    if keys is None:
        value[:] = items
        return
    if not isinstance(value, dict):
        _set_attributes(value, dict(zip(keys, items, strict=True)))
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
                value = self._value_of(number)
                _fill(value, entry.keys, [] if isinstance(value, tuple) else list(map(self.of, entry.leaves)))

    def _value_of(self, number):
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
            return self._value_of(what)
        return weakref.ref(self.values[what]) if kind == "weak" else what


class _OpenedParser(structures.ICustomArgParser):
    """The parser of an opened object, whose tensors are those of an argument."""

    def yieldTensors(self, struct):
        yield from struct.tensors

    def reconstruct(self, original_structure, tensor_iterator):
        return original_structure.copy_with([next(tensor_iterator) for _ in original_structure.tensors])


structures.OWN_PARSERS[Opened] = _OpenedParser()


def open_call(given):
    """Opens the objects among the arguments of a call.

    Args:
        given: (positional, named) arguments.
    Returns: (arguments of the program, the Opened or None if there are no objects).
    """
    if not _has_object(given):
        return given, None
    opened = Opened()
    with contextlib.suppress(_TooMuch):
        positional, named = structures.converted(given, lambda value: opened.add(value) if is_object(value) else None)
        if opened.roots:
            opened.settle()
            return ([*positional, opened.text, opened], named), opened
    return given, None


def close_call(positional, named):
    """The arguments of forward, from those of the program.

    Returns: (positional, named, the Opened with forward's objects)
    """
    if not positional or not isinstance(positional[-1], Opened):
        return positional, named, None
    *positional, _, opened = positional
    opened.build()
    return *_filled((positional, named), [opened.values[what] for _, what in opened.roots]), opened


def _filled(structure, objects):
    return structures.converted(structure, lambda part: objects[part.number] if type(part) is SlotOf else None)


def open_result(result, built, is_output):
    """Opens the objects that forward returned or changed.

    Args:
        built: the Opened of close_call().
        is_output: tells which tensors each call makes again.
    Returns: (result of the program, the Opened or None if there are no objects).
    """
    after = Opened(built, is_output)

    def replace(value):
        is_opened = is_object(value) and (after.knows(value) or tensors_in(value, is_output))
        return after.add(value) if is_opened else None

    result = structures.converted(result, replace)
    return (result, after) if after.roots or after.updates else (result, None)


def close_result(result, after, given, outputs):
    """The result of forward. Also changes the call's objects as forward did."""
    return _filled(result, after.finish(given, outputs))


def tensors_in(value, is_output=lambda tensor: True):
    """The tensors that an object reaches, if it can be opened."""
    opened = Opened(is_output=is_output)
    with contextlib.suppress(_TooMuch):
        if is_object(value):
            opened.add(value)
    return opened.tensors


def closed_in(structure):
    """The parts of a structure, and of the objects in it, that cannot be opened."""
    opened = Opened()
    try:
        opened.add([structure])
    except _TooMuch:
        return structures.other_leaves(structure)
    return [what for entry in opened.entries for kind, what in entry.leaves if kind == "value"]


def marks_of(given):
    """The contents of objects in the arguments of a call, for programs that take the objects as they are.

    Returns: (a text of each object, the tensors of each with their versions, the objects that must stay alive for both)
    """
    texts, versions, kept = [], [], []
    for leaf in filter(is_object, structures.other_leaves(given)):
        opened = Opened()
        try:
            opened.add(leaf)
            opened.settle()
        except _TooMuch:
            opened = Opened()
        texts.append(opened.text)
        versions.append([(id(one), 0 if one.is_inference() else one._version) for one in opened.tensors])
        kept.append(opened)
    return texts, versions, kept
