"""Choices of a pipeline. Source: spec keras.md, sections 1 and 2."""

import enum


class PipelineSchedule(enum.Enum):
    """The order of the stages' work. Results never depend on it.

    Grouped keeps two micro-batches per stage in progress, Interleaved one. Sequential runs one stage at a time, for
    debugging.
    """

    Grouped = 0
    Interleaved = 1
    Sequential = 2


class RecomputationMode(enum.Enum):
    """Whether a stage's forward is recomputed for its backward. All but Auto recompute it."""

    Auto = 0
    RecomputeThenBackpropagate = 1
    RecomputeAndBackpropagateInterleaved = 2
