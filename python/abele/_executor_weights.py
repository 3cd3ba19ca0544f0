"""Weights of an executor, to and from the device, and who has the newest ones.

Source: spec executor.md, section 6.
"""

from . import optim, wrapping
from ._errors import userError
from ._one_at_a_time import oneAtATime


class WeightSync:
    """Part of Executor."""

    @oneAtATime
    def copyWeightsToHost(self):
        """Copies parameters and buffers from the device into the model's tensors, and the state of a plain torch
        optimizer into the optimizer, so that its state_dict() is complete."""
        self._requireCompiled("copyWeightsToHost")
        were_stale = self._weights_are_stale
        self._weights_are_stale = False  # first: reading the model below must not come back here
        try:
            self._executable.copyWeightsToHost(self._model)
        except BaseException:
            self._weights_are_stale = were_stale
            raise
        self._host_version.number += 1
        if not self._reads_weights_only and self._training and self._has_torch_state and self._state_is_stale:
            self._pullOptimizerState()

    def copyWeightsToHostIfNeeded(self):
        """Copies the weights to the host if the device has newer ones. Returns: True if it copied."""
        if not self._weights_are_stale or self._executable is None:
            return False
        with self._lock:
            if not self._weights_are_stale or self._executable is None:
                return False  # another thread was here first
            self._reads_weights_only = True
            try:
                self.copyWeightsToHost()
            finally:
                self._reads_weights_only = False
        return True

    @oneAtATime
    def copyWeightsToDevice(self):
        """Copies the model's parameters and buffers to the device. Device progress that was not read is lost."""
        self._requireCompiled("copyWeightsToDevice")
        self._weights_are_stale = False
        if isinstance(self._optimizer, optim.Optimizer) and self._optimizer.host_state_is_dirty:
            self._pullOptimizerState()
        if self._training and self._has_torch_state and (self._hasNewState() or not self._state_is_stale):
            self._uploadOptimizerState(self._executable)  # torch's own step() may have changed it on the host
        self._executable.copyWeightsToDevice(self._model)
        if self._training:
            with wrapping.withoutPull():
                wrapping.wrapTensors(self._model, self)  # those that were put in place of others
        self._host_version.number += 1
        self._noteVersions()

    @oneAtATime
    def copyNamedBuffersToDevice(self):
        """Uploads the buffers that opts.updatableNamedBuffers lists."""
        self._requireCompiled("copyNamedBuffersToDevice")
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise userError(
                "E0702", "option-value", "no buffers are listed", remedy="opts.updatableNamedBuffers([...])"
            )
        self._executable.session.copyBuffersToDevice(list(names))

    @oneAtATime
    def load_state_dict(self, state_dict, strict=True):
        """Loads into the model and, if attached, uploads. Returns torch's named tuple."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._is_attached and self.isCompiled():
            self.copyWeightsToDevice()
        return result

    def _pullFromTraining(self):
        """Brings weights that this model shares with live training executors to the host."""
        if self._generation != wrapping.generation():
            self._generation = wrapping.generation()
            for executor in wrapping.trainingExecutors(self._model):
                if executor is not self:
                    self._seen_versions.setdefault(id(executor._host_version), [executor._host_version, -1, None])[
                        2
                    ] = wrapping.weakref.ref(executor)
        for _, _, reference in self._seen_versions.values():
            executor = reference()
            if executor is not None:
                executor.copyWeightsToHostIfNeeded()

    def _noteVersions(self):
        for entry in self._seen_versions.values():
            entry[1] = entry[0].number

    def _refreshDevice(self, program):
        """Uploads what changed on the host since the last call."""
        if self._training:
            if self._hasNewState():
                self._uploadOptimizerState(program)
            return
        self._pullFromTraining()
        if any(version.number != seen for version, seen, _ in self._seen_versions.values()):
            program.copyWeightsToDevice(self._model)
            self._noteVersions()
