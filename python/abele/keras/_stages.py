"""PipelineStage: the stage of layers, set where they are made or called. Source: spec keras.md, section 2.

Constructors and calls of layers note the stage only inside the context. Outside of it Keras is unchanged.
"""

from __future__ import annotations

import contextvars
import warnings
from types import TracebackType
from typing import Self

from keras.src.ops.node import Node
from keras.src.ops.operation import Operation

from .._errors import refused

_current = contextvars.ContextVar("abele_keras_stage", default=None)
_ATTRIBUTE = "_abele_pipeline_stage"  # key in the __dict__ of nodes and of operations
_originals = {}
_depth = 0
open_scopes = []  # their strategies


class PipelineStage:
    """with PipelineStage(n): layers made or called inside belong to stage n.

    A call's stage takes precedence over the stage of the layer's construction. Outside of a strategy's scope it warns,
    because models made there have no stages.
    """

    def __init__(self, stage: int) -> None:
        if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
            raise refused(
                ValueError, f"Expected the pipeline stage to be a non-negative integer, but got {stage!r} instead."
            )
        self._stage = stage
        self._token = None

    def __enter__(self) -> Self:
        if _current.get() is not None:
            raise refused(
                ValueError,
                f"Cannot enter the PipelineStage scope of stage {self._stage}: PipelineStage scopes cannot be nested, "
                f"and that of stage {_current.get()} is active.",
            )
        _warn_outside_of_strategies()
        self._token = _current.set(self._stage)
        _watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _unwatch()
        _current.reset(self._token)


def _warn_outside_of_strategies():
    if not open_scopes:
        warnings.warn(
            "PipelineStage outside of a strategy's scope: a model that is made outside of one is no pipeline, and runs "
            "as Keras runs it. Make it inside of `with IPUStrategy().scope():`",
            stacklevel=3,
        )


def _noting(original, on):
    """A constructor that also notes the stage."""

    def __init__(self, *args, **kwargs):  # noqa: N807
        original(self, *args, **kwargs)
        if _current.get() is not None:
            on(self).__dict__[_ATTRIBUTE] = _current.get()

    return __init__


def _watch():
    global _depth
    _depth += 1
    if _depth == 1:
        for cls in (Node, Operation):
            _originals[cls] = cls.__init__
            cls.__init__ = _noting(cls.__init__, lambda made: made)


def _unwatch():
    global _depth
    _depth -= 1
    if _depth == 0:
        for cls, original in _originals.items():
            cls.__init__ = original
        _originals.clear()


def stage_of_layer(operation):
    """The stage of an operation's construction, or None."""
    return operation.__dict__.get(_ATTRIBUTE)


def stage_of_call(node):
    """The stage of an invocation: the call's, otherwise the construction's, otherwise None."""
    stage = node.__dict__.get(_ATTRIBUTE)
    return stage_of_layer(node.operation) if stage is None else stage
