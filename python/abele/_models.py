"""Wrapped models of the abele front end."""

import json

from poptorch._native import isCapturing
from poptorch._version import __version__
from poptorch.executor import PoplarExecutor

__all__ = ["CompiledModel", "inferenceModel", "isCapturing", "trainingModel"]


class CompiledModel(PoplarExecutor):
    """A wrapped model: calling it runs one step. Every shape of the inputs gets a compiled program of its own; weights,
    optimizer state and random numbers move between them.

    Threads: one caller at a time.
    """

    _enforce_limits = False
    _many_programs = True

    def graphText(self):
        """The graph after the passes, in text form."""
        return self._session("graphText").graphText()

    def planText(self):
        """Placement, schedule and memory, in text form."""
        return self._session("planText").planText()

    def executableText(self):
        """The compiled program, in text form."""
        return self._session("executableText").executableText()

    def costs(self):
        """Times and memory of the stages, for simulate(): of the last step, or of capture before the first.

        Returns: {"hop_ns": 0, "stages": [{"forward_ns": ..., "stash_bytes": ..., ...}, ...]}.
        """
        return json.loads(self._session("costs").costs())

    def _session(self, what):
        self._requireCompiled(what)
        return self._executable.session


def trainingModel(model, options=None, optimizer=None):
    """Wraps a module for training; see poptorch.trainingModel. Returns: a CompiledModel."""
    return CompiledModel(model, options, True, __version__, optimizer)


def inferenceModel(model, options=None):
    """Wraps a module for inference; see poptorch.inferenceModel. Returns: a CompiledModel."""
    return CompiledModel(model, options, False, __version__)
