"""IPUStrategy: models that are made under it run as compiled programs. Source: spec keras.md, sections 1, 2 and 4."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from keras.src.models.functional import Functional
from keras.src.models.model import Model
from keras.src.models.sequential import Sequential
from keras.src.saving.keras_saveable import KerasSaveable

from . import _model, config
from ._stages import open_scopes

_Result = TypeVar("_Result")


class IPUStrategy:
    """Runs models on this process's devices, as IPUConfig configures them.

    >>> strategy = IPUStrategy()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Accepts the original's arguments without effect."""

    @contextlib.contextmanager
    def scope(self) -> Iterator[Self]:
        """Models that are made or loaded inside get the methods of this package, and keep them."""
        open_scopes.append(self)
        if len(open_scopes) == 1:
            _enter()
        try:
            yield self
        finally:
            open_scopes.pop()
            if not open_scopes:
                _leave()

    def run(
        self, fn: Callable[..., _Result], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> _Result:
        """Calls fn(*args, **kwargs), under this strategy."""
        with self.scope():
            return fn(*args, **(kwargs or {}))

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas of a model on one device: the devices of this process."""
        return config.selected_devices() or 1

    @property
    def num_ipus(self) -> int:
        """Number of the devices of this process."""
        return config.selected_devices() or 1


IPUStrategyV1 = IPUStrategy


def has_strategy() -> bool:
    """Whether a scope is open."""
    return bool(open_scopes)


def get_strategy() -> IPUStrategy | None:
    """The strategy of the innermost open scope, or None."""
    return open_scopes[-1] if open_scopes else None


def _unpickled(file):
    with IPUStrategy().scope():
        return KerasSaveable._unpickle_model(file)


def _reduce(model):
    """Pickles and copies of models made under a strategy have the same methods."""
    function, *others = super(type(model)._abele_extended, model).__reduce__()
    is_keras_own = getattr(function, "__func__", None) is KerasSaveable._unpickle_model.__func__
    return _unpickled if is_keras_own else function, *others


# Keras' own functions while a scope is open: (class, name) -> the function to restore.
_originals = {}


def _replace(cls, name, value):
    _originals[cls, name] = cls.__dict__[name]
    setattr(cls, name, value)


def _enter():
    new, init = Model.__new__, Functional.__init__
    from_config = Sequential.__dict__["from_config"].__func__

    def __new__(cls, *args, **kwargs):  # noqa: N807
        made = new(cls, *args, **kwargs)
        if isinstance(made, Model):
            made.__class__ = _model.extended(type(made), _reduce)
        return made

    def __init__(self, inputs, outputs, name=None, **kwargs):  # noqa: N807
        kept = kwargs.pop(_model.CONFIG_KEY, None)
        init(self, inputs, outputs, name=name, **kwargs)
        if not _model.is_extended(type(self)):
            return
        if kept is not None:
            _model.restore(self, kept)
        else:
            _model.take_scopes(self)

    def rebuilt_from_config(cls, config, custom_objects=None):
        model = from_config(cls, config, custom_objects=custom_objects)
        kept = config.get(_model.CONFIG_KEY)
        if kept is not None:
            _model.restore(model, kept)
        return model

    __init__.__signature__ = inspect.signature(init)
    _replace(Model, "__new__", staticmethod(__new__))
    _replace(Functional, "__init__", __init__)
    _replace(Sequential, "from_config", classmethod(rebuilt_from_config))


def _leave():
    for (cls, name), original in _originals.items():
        setattr(cls, name, original)
    _originals.clear()
