"""Buffers that forward replaces (`self.state = new`), as running states and spiking neurons do: an update, as in eager
PyTorch.

If a buffer keeps its dtype and shape, the program writes it. Otherwise the new buffer is a result of the program and is
put into the module after each call; if forward reads it, the next call gets its own program. Kernels add up in another
order with other strides, so a buffer that the program wrote gets the new strides after the call, and the next call gets
its own program. Later micro-batches of the same call read it with the old strides (E0108 where that changes results).
"""

import collections
import itertools
import sys

import torch

from . import wrapping
from ._errors import user_error
from ._native import core
from .enums import OutputMode

_REGISTERS = torch.nn.Module.register_buffer.__code__


class _Watched(dict):
    """The buffers of a module while forward is captured."""

    def __init__(self, buffers):
        super().__init__(buffers)
        self.set, self.read = set(), set()  # names; read before they were set

    def _note(self, *names):
        self.read.update(name for name in names if name not in self.set)

    def __getitem__(self, name):
        asks = sys._getframe(2).f_code is _REGISTERS  # by hasattr(), before it sets the buffer
        if not asks:
            self._note(name)
        return super().__getitem__(name)

    def __setitem__(self, name, value):
        self.set.add(name)
        super().__setitem__(name, value)

    def get(self, name, default=None):
        self._note(name)
        return super().get(name, default)

    def items(self):
        self._note(*self)
        return super().items()

    def values(self):
        self._note(*self)
        return super().values()


def _strides_of(buffer):
    """None if elements share memory other than along a whole dimension, as those of an expanded tensor do."""
    if buffer.layout != torch.strided:
        return None
    extent = 1
    for stride, size in sorted(zip(buffer.stride(), buffer.shape, strict=True)):
        if size < 2 or stride == 0:
            continue
        if stride < extent:
            return None
        extent += stride * (size - 1)
    return buffer.stride()


def _has_room(buffer, value):
    """Whether a tensor with the buffer's strides can have the values of another: they may differ in all dimensions."""
    if buffer is None or value is None or (buffer.dtype, buffer.shape) != (value.dtype, value.shape):
        return False
    ours, theirs = _strides_of(buffer), _strides_of(value)
    if ours is None:
        return False
    repeats = [size > 1 and stride == 0 for stride, size in zip(ours, buffer.shape, strict=True)]
    return not any(repeats) or (theirs is not None and all(theirs[d] == 0 for d in range(len(repeats)) if repeats[d]))


def _type_of(buffer):
    with wrapping.without_pull():
        if buffer is None:
            return "None"
        strides = _strides_of(buffer)
        text = f"{buffer.dtype}{list(buffer.shape)}"
        return text if strides is None or buffer.is_contiguous() else f"{text} with strides {list(strides)}"


def _memory_of(tensor):
    """The identity of its memory, which need not be readable."""
    has_memory = tensor is not None and tensor.layout == torch.strided
    return tensor.untyped_storage()._cdata if has_memory else None


def _tell_apart(buffers):
    """Whether the program would compute something else if these buffers were one memory."""
    pairs = itertools.permutations([each for each in buffers if each is not None], 2)
    return any(core().isReadAfterWrite(read, written) for read, written in pairs)


class _Replaced:
    """A replaced buffer.

    Args:
        after: its contents after a micro-batch.
        is_reshaped: the program does not write it, but returns what replaces it.
        is_read: by forward before it was replaced.
        is_bound: another program is needed for the next call.
    """

    def __init__(self, module, path, name, after, *, is_reshaped, is_read, is_bound):
        self._buffers = module.__dict__["_buffers"]
        self.name, self.path = name, path
        self.tensor = self._buffers[name]  # that programs know
        self.is_reshaped, self.is_read, self.is_bound = is_reshaped, is_read, is_bound
        self.is_newer = False  # than what the program has that reads it
        self.shape = None if after is None else tuple(after.shape)
        self.strides = None if after is None else _strides_of(after)
        self.type = _type_of(after)
        self.used = None  # the tensor that the program wrote in its last call

    @property
    def now(self):
        """The module's present buffer."""
        return self._buffers.get(self.name)

    def last_of(self, values):
        """The new buffer, in memory of its own, from the results of a call's micro-batches."""
        return self.copy_of(
            values if values.shape == self.shape else values[-self.shape[0] :] if self.shape else values[-1]
        )

    def copy_of(self, value):
        """A copy with the strides of what replaced the buffer."""
        if self.strides is None:
            return value.clone(memory_format=torch.contiguous_format)
        once = _once(value, self.strides)
        own = torch.empty_strided(once.shape, self.strides, dtype=value.dtype, device=value.device)
        return own.copy_(once).expand(self.shape)

    def put(self, tensor):
        """Puts the tensor into the module."""
        self._buffers[self.name] = self.tensor = tensor


class BufferWatch:
    """A context around forward. Afterwards the module has the buffers that it had before.

    Args:
        modules: path -> module, of those whose buffers forward may replace.
    """

    def __init__(self, modules):
        self._modules = {path: module for path, module in modules.items() if module.__dict__.get("_buffers")}
        self._watched = {}
        self._put = []  # buffers of a module, name, tensor before, tensor after

    def __enter__(self):
        for path, module in self._modules.items():
            self._watched[path] = module.__dict__["_buffers"], _Watched(module.__dict__["_buffers"])
            module.__dict__["_buffers"] = self._watched[path][1]
        return self

    def __exit__(self, *_):
        for path, module in self._modules.items():
            original, watched = self._watched[path]
            module.__dict__["_buffers"] = original
            for name in [name for name in original if name not in watched]:
                del original[name]
            for name, value in dict.items(watched):
                original.setdefault(name, value)

    def record(self, options, trained, *, reshapes):
        """Makes updates from the buffers that forward replaced.

        Args:
            trained: the parameters that the program changes.
            reshapes: whether buffers may have another type afterwards.
        Returns: (a _Replaced for each, the tensors of those with another type).
        Raises:
            poptorch.Error: E0108 for buffers with two names, for those of another type than the next micro-batch of the
                call would need, and for those in memory of another tensor that the program writes.
        """
        self._require_own_memory(trained)
        replaced, reshaped = [], []
        for path, module in self._modules.items():
            original, watched = self._watched[path]
            for name, before in original.items():
                after = dict.get(watched, name)
                if after is before:
                    continue
                full = f"{path}.{name}" if path else name
                self._require_one_name(full, before)
                is_read = name in watched.read
                is_reshaped, is_kept = not _has_room(before, after), False
                is_bound = is_read and _type_of(before) != _type_of(after)
                if is_reshaped:
                    _require_one_micro_batch(full, before, after, is_read, options, reshapes)
                    reshaped += [] if after is None else [after.detach()]
                else:
                    overlaps = _strides_of(after) is None  # its strides cannot be kept
                    is_kept = overlaps or (is_bound and (not reshapes or _num_micro_batches(options) > 1))
                    core().replaceBuffer(before, after, is_read and is_kept)
                how = {"is_reshaped": is_reshaped, "is_read": is_read, "is_bound": is_bound and not is_kept}
                replaced.append(_Replaced(module, full, name, after, **how))
        return replaced, reshaped

    def put_new(self):
        """The module has the new buffers until put_back(): backward may run parts of forward again, which read them."""
        for original, watched in self._watched.values():
            for name, before in list(original.items()):
                after = dict.get(watched, name)
                if after is not before:
                    original[name] = after
                    self._put.append((original, name, before, after))

    def news(self):
        """(buffer before, copy of what replaced it) for those of equal shape."""
        return [
            (before, after.detach().clone())
            for _, _, before, after in self._put
            if None not in (before, after) and before.shape == after.shape
        ]

    def put_back(self):
        """The module has the buffers that it had before forward. Returns: names of those that were replaced again."""
        again = []
        for original, name, before, after in self._put:
            again += [] if original.get(name) is after else [name]
            original[name] = before
        self._put.clear()
        return again

    def _require_own_memory(self, trained):
        named = collections.defaultdict(list)  # by memory: whether forward replaced it, name, the tensor before
        written = None  # the memory of the parameters that the program changes
        for path, (original, watched) in self._watched.items():
            for name, before in original.items():
                after = dict.get(watched, name)
                named[_memory_of(after)].append((after is not before, f"{path}.{name}" if path else name, before))
        for memory, users in named.items():
            replaced = [name for is_replaced, name, _ in users if is_replaced]
            if memory is None or not replaced:
                continue
            written = set(map(_memory_of, trained)) if written is None else written
            if memory not in written and not _tell_apart([each[2] for each in users]):
                continue
            others = [name for _, name, _ in users if name != replaced[0]] or ["a parameter"]
            raise user_error(
                "E0108",
                f"forward replaced {replaced[0]} by the memory of {others[0]}, which is also written in place",
                expected="memory of its own: eager PyTorch would change both from the next call on",
                remedy="replace it by a clone()",
            )

    def _require_one_name(self, full, buffer):
        count = sum(each is buffer for original, _ in self._watched.values() for each in original.values())
        if buffer is not None and count > 1:
            raise user_error(
                "E0108",
                f"forward replaced {full}, which is a buffer under other names, too",
                expected="one name for a buffer that is replaced",
                remedy="update it in place: copy_(new_value)",
            )


def _num_micro_batches(options):
    return options.device_iterations * options.Training.gradient_accumulation * options.replication_factor


def _require_one_micro_batch(full, before, after, is_read, options, reshapes):
    count = _num_micro_batches(options)
    is_summed = options.output_mode == OutputMode.Sum
    if reshapes and (count == 1 or not (is_read or is_summed)):
        return
    raise user_error(
        "E0108",
        f"forward replaced {full} by a tensor of another type, which the next micro-batch of the call would read",
        found=f"{_type_of(before)} becomes {_type_of(after)}, in a call of {count} micro-batches",
        expected="one type, or one micro-batch a call",
        remedy="give the buffer its final shape before the first call, by a native call of the module say",
    )


class ReplacedBuffers:
    """The replaced buffers of an executor's module, between its calls. Threads: one caller at a time."""

    def __init__(self):
        self._known = {}  # by path
        self._typed = set()  # paths of those whose type tells programs apart

    def note(self, program):
        """A program was compiled."""
        for each in program.replaced:
            self._known[each.path] = each
            if each.is_reshaped and each.is_read:
                self._typed.add(each.path)

    def follow(self, program):
        """Notes the buffers that other code has put into the module since the current program ran. Returns: paths of
        buffers with new contents."""
        written, used = [], {each.path: each.used for each in program.replaced} if program is not None else {}
        for path, each in self._known.items():
            now = each.now
            if now is each.tensor:
                written += [path] if each.is_newer else []
                each.is_newer = False
                continue
            if now is not None and used.get(path) is not None and _type_of(now) == _type_of(used[path]):
                each.tensor = used[path]  # the program may run again, and has this one
            if now is None or _type_of(now) != _type_of(each.tensor):
                each.tensor = now
                self._typed.add(path)
                continue
            _copy(now, each.tensor)
            each.put(each.tensor)
            written.append(path)
        return written

    def form(self):
        """A text that distinguishes calls by the types of these buffers."""
        return "".join([f"; {path}: {_type_of(self._known[path].tensor)}" for path in sorted(self._typed)])

    def take(self, program, outputs, download):
        """Puts the last outputs of a step into the module, and gives buffers that the program wrote their new strides.

        Args:
            download: copies them to the module.
        Returns: (the other outputs, whether a tensor of the module is new).
        """
        reshaped = [each for each in program.replaced if each.is_reshaped]
        count = sum(each.shape is not None for each in reshaped)
        outputs, values = outputs[: len(outputs) - count], iter(outputs[len(outputs) - count :])
        is_new = False
        for result in reshaped:
            each = self._known[result.path]
            value = None if result.shape is None else result.last_of(next(values))
            if value is not None and _type_of(value) == _type_of(each.tensor):
                _copy(value, each.tensor)
                each.is_newer = result.is_read
            else:
                each.put(value)
                is_new = True
        other = [each for each in program.replaced if not each.is_reshaped]
        other = [each for each in other if each.type != _type_of(self._known[each.path].tensor)]
        if other:
            download()
        for result in other:
            each = self._known[result.path]
            result.used = each.tensor
            with wrapping.without_pull():
                each.put(result.copy_of(each.tensor.detach()))
            self._typed.add(result.path)
        return outputs, is_new or bool(other)


def _once(tensor, strides):
    """The part of it whose elements have memory of their own in a tensor with these strides."""
    return tensor[tuple(slice(1 if stride == 0 else None) for stride in strides)] if strides else tensor


def _copy(source, target):
    with wrapping.without_pull(), torch.no_grad():
        strides = _strides_of(target)
        _once(target, strides).copy_(_once(source, strides))
