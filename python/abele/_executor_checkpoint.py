"""Saves and restores an executor's part of a checkpoint. Public: checkpoint.py."""

from . import wrapping
from ._errors import userError
from ._native import core
from ._one_at_a_time import oneAtATime
from .checkpoint import takeValues


class Checkpoints:
    """Part of Executor."""

    @oneAtATime
    def _saveCheckpoint(self, write):
        """write(checkpoint): adds the other parts and writes it, in all processes."""
        self._requireTraining("save_checkpoint")
        self._native.compiled("save_checkpoint")
        self.copyWeightsToHostIfNeeded()
        return write(self._native.checkpoint({name: value.detach() for name, value in self._weights().items()}))

    @oneAtATime
    def _loadCheckpoint(self, checkpoint, numbers, front):
        """Changes nothing if the checkpoint is of another model or optimizer."""
        self._requireTraining("load_checkpoint")
        self._requireFits(checkpoint)
        core().withNumbers(self._native.optimizerSpec(), checkpoint.texts["optimizer"])
        self._native.requireWhole(checkpoint)
        if self._host_updates is not None:
            self._host_updates.goOnFrom(front.get("host_optimizer"))
        self._native.goOnFrom(checkpoint, front.get("updates"))
        takeValues(self._optimizer, numbers, front)
        self._native.sendOptimizer()
        self._native.takeWeights(checkpoint)
        self._rng_cache = None

    def _requireFits(self, checkpoint):
        weights, given = self._weights(), checkpoint.shapes
        for name in {**weights, **given}:
            fits = name in weights and name in given and list(weights[name].shape) == given[name]
            if not fits:
                raise userError(
                    "E0708",
                    f"the model does not fit the checkpoint's {name}",
                    found=str(given.get(name, "no such tensor")),
                    expected=str(list(weights[name].shape)) if name in weights else "no such tensor",
                    remedy="make the model as it was when the checkpoint was written",
                )

    def _weights(self):
        """Parameters and buffers, each once under its first name, as in C++'s checkpoints."""
        with wrapping.withoutPull():
            return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def _requireTraining(self, what):
        if not self._training:
            raise userError("E0706", f"{what} of a model for inference", remedy="pass the training model")
