"""Saves and restores an executor's part of a checkpoint. Public: checkpoint.py."""

from . import wrapping
from ._errors import user_error
from ._native import core
from ._one_at_a_time import one_at_a_time
from .checkpoint import take_values


class Checkpoints:
    """Part of Executor."""

    @one_at_a_time
    def _save_checkpoint(self, write):
        """write(checkpoint): adds the other parts and writes it, in all processes."""
        self._require_training("save_checkpoint")
        self._native.compiled("save_checkpoint")
        self.copyWeightsToHostIfNeeded()
        return write(self._native.checkpoint({name: value.detach() for name, value in self._weights().items()}))

    @one_at_a_time
    def _load_checkpoint(self, checkpoint, numbers, front):
        """Changes nothing if the checkpoint is of another model or optimizer."""
        self._require_training("load_checkpoint")
        self._require_fits(checkpoint)
        core().withNumbers(self._native.optimizerSpec(), checkpoint.texts["optimizer"])
        self._native.requireWhole(checkpoint)
        if self._host_updates is not None:
            self._host_updates.resume(front.get("host_optimizer"))
        self._native.goOnFrom(checkpoint, front.get("updates"))
        take_values(self._optimizer, numbers, front)
        self._native.sendOptimizer()
        self._native.takeWeights(checkpoint)
        self._rng_cache = None

    def _require_fits(self, checkpoint):
        weights, given = self._weights(), checkpoint.shapes
        for name in {**weights, **given}:
            fits = name in weights and name in given and list(weights[name].shape) == given[name]
            if not fits:
                raise user_error(
                    "E0708",
                    f"the model does not fit the checkpoint's {name}",
                    found=str(given.get(name, "no such tensor")),
                    expected=str(list(weights[name].shape)) if name in weights else "no such tensor",
                    remedy="make the model as it was when the checkpoint was written",
                )

    def _weights(self):
        """Parameters and buffers, each once under its first name, as in C++'s checkpoints."""
        with wrapping.without_pull():
            return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def _require_training(self, what):
        if not self._training:
            raise user_error("E0706", f"{what} of a model for inference", remedy="pass the training model")
