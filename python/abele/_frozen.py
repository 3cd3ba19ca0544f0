"""What a program holds as it was at compile time, though Python can change it: modules and their tensors, hooks, and
the plain values that forward reads. Changes are named in a warning.

Source: spec executor.md, section 5 (what the first call freezes).
"""

import contextlib
import functools
import inspect
import itertools
import operator
import time
import types

import torch

from . import wrapping
from ._logging import logger
from ._native import core

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)
_HOOKS = {
    "_forward_hooks": "forward hooks",
    "_forward_pre_hooks": "forward pre-hooks",
    "_backward_hooks": "backward hooks",
    "_backward_pre_hooks": "backward pre-hooks",
}
_GLOBAL_HOOKS = {
    "_global_forward_hooks": "forward hooks of all modules",
    "_global_forward_pre_hooks": "forward pre-hooks of all modules",
    "_global_backward_hooks": "backward hooks of all modules",
    "_global_backward_pre_hooks": "backward pre-hooks of all modules",
}
_HELD = {"_parameters": "parameters", "_buffers": "buffers", "_modules": "modules"}
_NO_OBJECTS = (type, types.ModuleType, torch.nn.Module)
_MAX_FUNCTIONS = 1000
_MAX_KEYS = 100  # of a dictionary
_ALWAYS = 8  # the first calls look for sure, others where looking takes less than a hundredth of the time
_SHARE = 100

_COMPILE = (
    ": the program goes on with what it was compiled with; to use the change, destroy() the executor and compile again"
)
_UPLOAD = ", and the device goes on with the one before: call copyWeightsToDevice() of the executor"

# Of torch, which choose kernels or the types of results.
_SETTINGS = {
    "autocast of the CPU": lambda: torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.backends.mkldnn.matmul.fp32_precision": lambda: torch.backends.mkldnn.matmul.fp32_precision,
    "torch.backends.mkldnn.conv.fp32_precision": lambda: torch.backends.mkldnn.conv.fp32_precision,
    "torch.backends.mkldnn.rnn.fp32_precision": lambda: torch.backends.mkldnn.rnn.fp32_precision,
    "torch.backends.mkldnn.enabled": torch._C._get_mkldnn_enabled,
    "torch.backends.cuda.flash_sdp_enabled()": torch._C._get_flash_sdp_enabled,
    "torch.backends.cuda.math_sdp_enabled()": torch._C._get_math_sdp_enabled,
}

_version = operator.attrgetter("_version")
_asksForGradient = operator.attrgetter("requires_grad")
_hooks = operator.attrgetter("_backward_hooks")
_contents = operator.attrgetter("cell_contents")


def _isTorchs(thing):
    return (thing.__module__ or "").partition(".")[0] == "torch"  # None: code that exec() made without a name


def filledCells(function):
    """(name, cell) of the variables around a function that have a value."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty
            _ = cell.cell_contents
            yield name, cell


def _itemsOf(container):
    """What one can compare of a list, tuple, set or dictionary; of others None."""
    if isinstance(container, dict):
        return {key: _itemOf(container[key]) for key in itertools.islice(container, _MAX_KEYS)}
    if isinstance(container, list | tuple | set | frozenset):
        items = map(_itemOf, itertools.islice(container, _MAX_KEYS))
        kind = next(kind for kind in (list, tuple, set, frozenset) if isinstance(container, kind))
        return kind(items)
    return None


def _itemOf(item):
    return item if isinstance(item, _PLAIN) else type(item)


def _namesIn(code):
    """The attributes and globals that code uses, also in functions inside of it."""
    inner = (_namesIn(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


class _Code:
    """The functions that forward calls by name, and what all of them can read."""

    def __init__(self):
        self.functions = {}  # function: names that it uses
        self._of_class = {}

    def namesOf(self, module):
        """Attributes that forward of a module, or a method that it calls, may read."""
        kind = type(module)
        if kind not in self._of_class:
            self._of_class[kind] = names = set()
            self._add(inspect.getattr_static(kind, "forward", None), kind, names)
        names = self._of_class[kind]
        own = [value for name, value in vars(module).items() if isinstance(value, _FUNCTIONS) and name in names]
        if own:
            names = set(names)
            for function in own:
                self._add(function, kind, names)
        return names

    def _add(self, function, kind, names):
        if isinstance(function, property):
            function = function.fget
        elif isinstance(function, functools.cached_property):
            function = function.func
        function = inspect.unwrap(getattr(function, "__func__", function))
        if not isinstance(function, types.FunctionType) or _isTorchs(function):
            return
        is_new = function not in self.functions
        own = self.functions.setdefault(function, _namesIn(function.__code__))
        if (own <= names and not is_new) or len(self.functions) > _MAX_FUNCTIONS:
            return
        names |= own
        for name in own:
            self._add(inspect.getattr_static(kind, name, None), kind, names)
            called = function.__globals__.get(name)
            is_programs = isinstance(called, types.FunctionType) and called.__module__ == function.__module__
            if is_programs and called not in self.functions:
                self._add(called, kind, set())


def _quietly(method):
    """Reading a wrapped tensor's attributes brings no weights back from the device."""

    @functools.wraps(method)
    def read(self, *args, **kwargs):
        with wrapping.withoutPull(), torch._C.DisableTorchFunctionSubclass():
            return method(self, *args, **kwargs)

    return read


class _Cell:
    """A variable around a function, as an entry of a dictionary."""

    def __init__(self, cell):
        self._cell = cell

    def get(self, name):
        with contextlib.suppress(ValueError):  # it is empty
            return self._cell.cell_contents


class Frozen:
    """How a model is now; warns of what has changed since. Threads: whoever has a turn of the model.

    Args:
        training: the program trains the model.
    """

    @_quietly
    def __init__(self, model, *, training):
        self._dicts, self._keys, self._in_dicts = [], [], []  # the last: how messages call them
        self._missing = []  # what their values are as long as the key is not there
        self._held, self._in_held = [], []  # (attributes, name) of lists, tuples and others
        self._weights = set()  # which of them are parameters and buffers
        self._cells, self._in_cells = [], []
        self._sized, self._in_sized = [], []  # what modules hold, and their hooks
        self._containers, self._in_containers = [], []  # that forward may fill
        self._asking = list(model.parameters()) if training else []
        self._own = {
            tensor.untyped_storage()._cdata for tensor in [*model.parameters(), *model.buffers()] if _has(tensor)
        }
        for kind, title in _GLOBAL_HOOKS.items():
            self._sized.append(getattr(torch.nn.modules.module, kind))
            self._in_sized.append(title)
        code = _Code()
        for path, module in model.named_modules():
            self._addModule(module, path + "." if path else "", code)
        for function, names in code.functions.items():
            self._addFunction(function, names)
        self._calls = 0
        self._next_look = 0.0
        self._named = set()
        self._note()

    def _addModule(self, module, prefix, code):
        attributes = vars(module)
        for kind, title in {**_HELD, **_HOOKS}.items():
            held = attributes.get(kind)
            if not isinstance(held, dict):  # a module of TorchScript has none
                continue
            self._sized.append(held)
            self._in_sized.append(f"{title} of {prefix[:-1] or 'the model'}")
            if kind in _HELD:
                for name in held:
                    self._add(held, name, prefix + name)
                    if kind != "_modules":
                        self._weights.add(prefix + name)
        if _isTorchs(type(module)):
            for name, value in attributes.items():
                if isinstance(value, (*_PLAIN, *_FUNCTIONS)) and name != "training" and name[0] != "_":
                    self._add(attributes, name, prefix + name)
            return
        names = code.namesOf(module)
        for name in names - attributes.keys():
            default = inspect.getattr_static(type(module), name, module)
            if isinstance(default, _PLAIN):
                self._add(attributes, name, prefix + name, default)
        for name in names & attributes.keys():
            value = attributes[name]
            if name == "training" or name in _HELD or name in _HOOKS:
                continue
            if isinstance(value, (*_PLAIN, *_FUNCTIONS, torch.Tensor, torch.Generator)):
                self._add(attributes, name, prefix + name)
            else:
                self._addHolder(attributes, name, value, names, prefix)

    def _addHolder(self, attributes, name, value, names, prefix="", where=""):
        """A container or an object of one's own, in the attributes of a module or the variables of a function.

        Args:
            names: attributes that forward may read of objects.
            prefix, where: around the name in messages.
        """
        path = prefix + name
        if isinstance(value, tuple | frozenset | list | dict | set):
            if isinstance(value, dict):
                self._addPlain(value, list(value)[:_MAX_KEYS], f"{path}[{{!r}}]{where}")
            self._held.append((attributes, name))
            self._in_held.append((path, where))
            if isinstance(value, list | dict | set):
                self._containers.append(value)
                self._in_containers.append(path + where)
        elif isinstance(getattr(value, "__dict__", None), dict) and not isinstance(value, _NO_OBJECTS):
            inner = vars(value)
            self._addPlain(inner, names & inner.keys(), f"{path}.{{}}{where}")

    def _addPlain(self, values, keys, path):
        """What one object or dictionary of a module holds."""
        for key in keys:
            if isinstance(values[key], _PLAIN):
                self._add(values, key, path.format(key))

    def _addFunction(self, function, names):
        where = f" (read by {function.__qualname__})"
        variables = function.__globals__
        for name in names & variables.keys():
            if isinstance(variables[name], (*_PLAIN, torch.Tensor, torch.Generator)) and name[:2] != "__":
                self._add(variables, name, name + where)
            elif name[:2] != "__":
                self._addHolder(variables, name, variables[name], names, where=where)
        for name, cell in filledCells(function):
            if isinstance(cell.cell_contents, (*_PLAIN, torch.Tensor, torch.Generator)):
                self._cells.append(cell)
                self._in_cells.append(name + where)
            elif not isinstance(cell.cell_contents, _FUNCTIONS):
                self._addHolder(_Cell(cell), name, cell.cell_contents, names, where=where)

    def _add(self, where, key, path, missing=None):
        self._dicts.append(where)
        self._keys.append(key)
        self._missing.append(missing)
        self._in_dicts.append(path)

    def _paths(self):
        return [*self._in_dicts, *self._in_cells]

    def _now(self):
        return [*map(dict.get, self._dicts, self._keys, self._missing), *map(_contents, self._cells)]

    def _itemsNow(self):
        return [_itemsOf(attributes.get(name)) for attributes, name in self._held]

    def _note(self):
        """How all of it is now."""
        self._values = self._now()
        self._sizes, self._fillings = list(map(len, self._sized)), list(map(len, self._containers))
        self._items = self._itemsNow()
        constants = {
            id(value): (value, path)
            for value, path in zip(self._values, self._paths(), strict=True)
            if isinstance(value, torch.Tensor) and _has(value) and value.untyped_storage()._cdata not in self._own
        }
        self._constants = [value for value, _ in constants.values()]
        self._in_constants = [path for _, path in constants.values()]
        self._versions = list(map(_version, self._constants))
        self._gradients = list(map(_asksForGradient, self._asking))
        self._gradient_hooks = list(map(_hooks, self._asking))
        self._settings = [read() for read in _SETTINGS.values()]

    @_quietly
    def noteWeights(self):
        """The device has the tensors that are there now."""
        for i, path in enumerate(self._in_dicts):
            if path in self._weights:
                self._values[i] = self._dicts[i].get(self._keys[i])

    # What forward itself changes --------------------------------------------------------------------------------------
    @_quietly
    def warnOfForward(self):
        """Warns of what forward has changed since, which it does once only. Requires: it is being captured."""
        for value, now, path in zip(self._values, self._now(), self._paths(), strict=True):
            if now is value or not _differs(value, now):
                continue
            if isinstance(now, torch.Tensor):
                if core().mayVary(now):
                    self._warnOfKept(path)
            elif isinstance(value, torch.nn.Module):
                logger.warning(
                    "forward replaced the module %s: the program repeats this call in every micro-batch, with the "
                    "random numbers that it drew, where eager PyTorch would do so once; call the model once before it "
                    "is compiled",
                    path,
                )
            elif isinstance(now, _PLAIN) and isinstance(value, _PLAIN):
                logger.warning(
                    "forward changes %s (%r, then %r): only the call that compiles does, and the program goes on with "
                    "what forward made of it then; keep it in a buffer, and change it in place",
                    path,
                    value,
                    now,
                )
        for container, size, path in zip(self._containers, self._fillings, self._in_containers, strict=True):
            if len(container) != size and any(
                isinstance(one, torch.Tensor) and core().mayVary(one)
                for one in (container.values() if isinstance(container, dict) else container)
            ):
                self._warnOfKept(path)
        self._note()

    def _warnOfKept(self, path):
        logger.warning(
            "forward keeps a tensor in %s: only the call that compiles does, and no later call finds it there; return "
            "it, or keep it in a buffer that is changed in place",
            path,
        )

    # What others change afterwards ------------------------------------------------------------------------------------
    def warn(self):
        """Warns of what has changed, once of each. Takes a hundredth of the time of the calls at most."""
        self._calls += 1
        start = time.perf_counter()
        if self._calls > _ALWAYS and start < self._next_look:
            return
        for path, text in self._changes():
            if path not in self._named:
                logger.warning("%s %s", path, text)
            self._named.add(path)
        end = time.perf_counter()
        self._next_look = end + _SHARE * (end - start)

    @_quietly
    def _changes(self):
        """(name, what has happened to it) of everything that is not as it was."""
        changes = []
        now = self._now()
        if not all(map(operator.is_, now, self._values)):
            for value, changed, path in zip(self._values, now, self._paths(), strict=True):
                if changed is not value and _differs(value, changed):
                    is_weight = path in self._weights and isinstance(changed, torch.Tensor)
                    changes.append((path, _textOf(value, changed) + (_UPLOAD if is_weight else _COMPILE)))
        sizes = list(map(len, self._sized))
        if sizes != self._sizes:
            changes += [
                (path, f"were {was} and are {is_now} now{_COMPILE}")
                for path, was, is_now in zip(self._in_sized, self._sizes, sizes, strict=True)
                if was != is_now
            ]
        named = {path for path, _ in changes}
        for (path, where), was, is_now in zip(self._in_held, self._items, self._itemsNow(), strict=True):
            if was != is_now and not any(one.startswith(path + "[") for one in named):
                changes.append((path + where, f"was {was!r} when it was compiled, and is {is_now!r} now{_COMPILE}"))
        versions = list(map(_version, self._constants))
        if versions != self._versions:
            changes += [
                (path, f"was written since{_COMPILE}")
                for path, was, is_now in zip(self._in_constants, self._versions, versions, strict=True)
                if was != is_now
            ]
        gradients = list(map(_asksForGradient, self._asking))
        if gradients != self._gradients:
            number = sum(map(operator.ne, gradients, self._gradients))
            changes.append(("requires_grad", f"of {number} parameters is another one now{_COMPILE}"))
        if not all(map(operator.is_, map(_hooks, self._asking), self._gradient_hooks)):
            changes.append(("register_hook()", f"was called on a parameter{_COMPILE}"))
        settings = [read() for read in _SETTINGS.values()]
        if settings != self._settings:
            changes += [
                (name, f"was {was} when the model was compiled, and is {now} now{_COMPILE}")
                for name, was, now in zip(_SETTINGS, self._settings, settings, strict=True)
                if was != now
            ]
        if changes:
            self._note()
        return changes


def _has(tensor):
    """Does it have memory of its own, whose writes torch counts?"""
    return (
        tensor.layout == torch.strided
        and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        and (not tensor.is_inference())
    )


def _differs(value, now):
    both_plain = isinstance(value, _PLAIN) and isinstance(now, _PLAIN)
    return not both_plain or type(value) is not type(now) or value != now


def _textOf(value, now):
    if isinstance(value, _PLAIN) and isinstance(now, _PLAIN):
        return f"was {value!r} when it was compiled, and is {now!r} now"
    kind = "module" if isinstance(now, torch.nn.Module) else "tensor" if isinstance(now, torch.Tensor) else "object"
    return "is gone" if now is None else f"is another {kind} now"
