"""Tracing channels: spans of work, recorded if PVTI_OPTIONS or trace() of a model enables it (docs/tracing.md).

Source: spec environment.md, section 5.
"""

import contextlib
import copyreg
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Self, TypeVar

_Item = TypeVar("_Item")
_Object = TypeVar("_Object")

_MODULE = __package__ + "._trace_file"
_NOTHING = contextlib.nullcontext()


def _tracing():
    """The module that records, or None if tracing is off."""
    if "PVTI_OPTIONS" not in os.environ and _MODULE not in sys.modules:
        return None
    from . import _trace_file

    return _trace_file if _trace_file.is_recording() else None


class Channel:
    """A named source of spans. Channels of one name are one object. Without a recording it does nothing."""

    _channels = {}

    def __new__(cls, name: str) -> Self:
        channel = cls._channels.get(name)
        if channel is None:
            channel = cls._channels[name] = super().__new__(cls)
            channel._name = name
        return channel

    def __reduce__(self):
        return Channel, (self._name,)

    def tracepoint(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A context manager around the span `<channel>.<name>`."""
        return self._span(f"{self._name}.{name}")

    def _span(self, label):
        tracing = _tracing()
        return _NOTHING if tracing is None else tracing.Span(label, self._name)

    def spans(self, name: str, items: Iterable[_Item]) -> Iterator[_Item]:
        """An iterator over these items. While a recording runs, getting each item is the span `<channel>.<name>`."""
        return iter(items) if _tracing() is None else self._traced(name, iter(items))

    def _traced(self, name, items):
        end = object()
        while True:
            with self.tracepoint(name):
                item = next(items, end)
            if item is end:
                return
            yield item

    def instrument(self, obj: _Object, *method_names: str) -> _Object:
        """Wraps these methods of obj in spans named by class and method. Returns: obj.

        The object gets its own class, derived from its present one, so that special methods are traced too. Objects
        that cannot change their class, such as lists, do not change.
        """
        if _tracing() is None:
            return obj
        with contextlib.suppress(TypeError):
            obj.__class__ = _instrumented(type(obj), self, method_names)
        return obj


def _traced(method, label, channel):
    @functools.wraps(method)
    def wrapper(*args, **kwargs):
        with channel._span(label):
            return method(*args, **kwargs)

    return wrapper


def _new(cls, *args):
    return cls.__new__(cls, *args)


def _new_with(cls, args, kwargs):
    return cls.__new__(cls, *args, **kwargs)


def _reduce(self, protocol):
    # Tracing belongs to one process. In other processes the object has the class that the user gave it.
    cls, original = type(self), type(self)._abele_original
    function, args, *rest = original.__reduce_ex__(self, protocol)
    # Pickle requires that these two functions get the object's own class.
    function = {copyreg.__newobj__: _new, copyreg.__newobj_ex__: _new_with}.get(function, function)
    return function, tuple(original if item is cls else item for item in args), *rest


@functools.cache
def _instrumented(cls, channel, method_names):
    """A subclass whose methods are traced."""
    if getattr(cls, "_abele_traced_by", None) == (channel, method_names):
        return cls
    label = getattr(cls, "_profiling_name", None) or f"{cls.__module__}.{cls.__qualname__}"
    members = {name: _traced(getattr(cls, name), f"{label}.{name}", channel) for name in method_names}
    members.update(
        __slots__=(),
        __module__=cls.__module__,
        __qualname__=cls.__qualname__,
        __reduce_ex__=_reduce,
        _abele_original=getattr(cls, "_abele_original", cls),
        _abele_traced_by=(channel, method_names),
    )
    return type(cls)(cls.__name__, (cls,), members)


__all__ = ["Channel"]
