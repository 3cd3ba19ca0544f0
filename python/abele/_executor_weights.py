"""Weights of an executor, to and from the device, and who has the newest ones.

Source: spec executor.md, section 6.
"""

from . import wrapping
from ._errors import userError
from ._item_access import replaced
from ._one_at_a_time import oneAtATime


class WeightSync:
    """Part of Executor."""

    @oneAtATime
    def copyWeightsToHost(self):
        """Copies parameters and buffers from the device into the model's tensors, and the state of a plain torch
        optimizer into the optimizer, so that its state_dict() is complete."""
        self._followBuffers()
        self._native.download(with_state=not self._reads_weights_only)
        self._wrapReplaced()

    def copyWeightsToHostIfNeeded(self):
        """Copies the weights to the host if the device has newer ones. Returns: True if it copied."""
        if not self._native.isStale():
            return False
        with self._lock:
            if not self._native.isStale():
                return False  # another thread was here first
            with replaced("_reads_weights_only", True, self):
                self.copyWeightsToHost()
        return True

    def state_dict(self, *args, **kwargs):
        """The user model's, with the newest weights. Where several processes hold the stages all call it."""
        if not self._training:  # else the wrapped module asks
            self._requireComplete("state_dict()")
        return self._user_model.state_dict(*args, **kwargs)

    def _requireComplete(self, what, stream="abele.weights(model)"):
        """Refuses what would lack tensors that other processes have. stream: what gives them one by one."""
        if wrapping.isSuspended() or not self._hasMetaTensors():
            return  # without a turn: other threads read the weights of a model that is being compiled
        with self._lock:
            self._native.requireComplete(
                what,
                "in all processes, abele.save_weights(folder, model) or abele.save_checkpoint(folder, model, step=n); "
                f"dict({stream}) where each has the memory for all",
            )

    def _hasMetaTensors(self):
        with wrapping.withoutPull():
            return any(tensor.is_meta for tensor in [*self._user_model.parameters(), *self._user_model.buffers()])

    @oneAtATime
    def copyWeightsToDevice(self):
        """Copies the model's parameters and buffers to the device. Device progress that was not read is lost."""
        self._followBuffers()
        self._native.upload()
        self._wrapReplaced()

    def _wrapReplaced(self):
        """Tensors that were put in place of others ask for the newest weights, too."""
        if self._training and self._has_model:
            with wrapping.withoutPull():
                wrapping.wrapTensors(self._model, self)

    @oneAtATime
    def copyNamedBuffersToDevice(self):
        """Uploads the buffers that opts.updatableNamedBuffers lists."""
        session = self._native.compiled("copyNamedBuffersToDevice")
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise userError("E0702", "no buffers are listed", remedy="opts.updatableNamedBuffers([...])")
        session.copyBuffersToDevice(list(names))

    @oneAtATime
    def load_state_dict(self, state_dict, strict=True):
        """Loads into the model and, if attached, uploads. Returns torch's named tuple."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._native.isAttached() and self.isCompiled():
            self.copyWeightsToDevice()
        return result
