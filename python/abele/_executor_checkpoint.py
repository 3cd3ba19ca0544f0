"""What checkpoints take from an executor and give back. Public: checkpoint.py."""

import torch

from . import optim, wrapping
from ._errors import userError
from ._native import core
from ._one_at_a_time import oneAtATime
from .checkpoint import takeValues


class Checkpoints:
    """Part of Executor."""

    @oneAtATime
    def _saveCheckpoint(self, write):
        """write(checkpoint): adds the rest and writes it, in the process that does so for all."""
        self._requireTraining("save_checkpoint")
        self._requireCompiled("save_checkpoint")
        self.copyWeightsToHostIfNeeded()
        checkpoint = core().Checkpoint()
        checkpoint.take(self._native.session())  # of all processes: each has a part of the state
        checkpoint.weights = {name: value.detach() for name, value in self._weights().items()}
        return write(checkpoint)

    @oneAtATime
    def _loadCheckpoint(self, checkpoint, numbers, front):
        """Nothing is changed where the checkpoint is of another model or optimizer."""
        self._requireTraining("load_checkpoint")
        weights, given = self._weights(), checkpoint.weights
        for name in {**weights, **given}:
            fits = name in weights and name in given and weights[name].shape == given[name].shape
            if not fits:
                raise userError(
                    "E0708",
                    "arguments",
                    f"the model does not fit the checkpoint's {name}",
                    found=_shapeOf(given, name),
                    expected=_shapeOf(weights, name),
                    remedy="make the model as it was when the checkpoint was written",
                )
        core().withNumbers(self._optimizerSpec(), checkpoint.texts["optimizer"])
        self._native.goOnFrom(checkpoint)
        takeValues(self._optimizer, numbers, front)
        if self.isCompiled():
            self._send(self._native.session(), self._optimizer)
        self._noteState(checkpoint.optimizer_state, front)
        with torch.no_grad():
            for name, value in given.items():
                weights[name].copy_(value)
        if self.isCompiled() and self._native.isAttached():
            self.copyWeightsToDevice()
        self._rng_cache = None

    def _noteState(self, state, front):
        """The device's state is newer than the optimizer's."""
        steps = [int(value) for name, value in state.items() if name.startswith("step/")]
        self._updates = front.get("updates", max(steps, default=1))
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer.ipu_state_is_dirty = False
            self._optimizer.host_state_is_dirty = True
            return
        self._optimizer.state.clear()
        self._host_state = self._optimizer.state
        self._state_is_stale = True

    def _weights(self):
        """Parameters and buffers, each once under its first name: those of C++'s checkpoints."""
        with wrapping.withoutPull():
            return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def _requireTraining(self, what):
        if not self._training:
            raise userError("E0706", "optimizer", f"{what} of a model for inference", remedy="pass the training model")


def _shapeOf(tensors, name):
    return str(list(tensors[name].shape)) if name in tensors else "no such tensor"
