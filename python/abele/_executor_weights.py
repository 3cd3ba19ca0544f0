"""Weights of an executor, to and from the device, and who has the newest ones.

Source: spec executor.md, section 6.
"""

from collections.abc import Mapping
from typing import Any

from . import wrapping
from ._errors import user_error
from ._item_access import replaced
from ._one_at_a_time import one_at_a_time


class WeightSync:
    """Part of Executor."""

    @one_at_a_time
    def copyWeightsToHost(self) -> None:
        """Copies parameters and buffers from the device into the model's tensors, and the state of a plain torch
        optimizer into the optimizer, so that its state_dict() is complete."""
        self._follow_buffers()
        self._native.download(with_state=not self._reads_weights_only)
        self._wrap_replaced()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Copies the weights to the host if the device has newer ones. Returns: True if it copied."""
        if not self._native.isStale():
            return False
        with self._lock:
            if not self._native.isStale():
                return False  # another thread was here first
            with replaced("_reads_weights_only", True, self):
                self.copyWeightsToHost()
        return True

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The user model's, with the newest weights. Where several processes hold the stages all call it."""
        if not self._training:  # else the wrapped module asks
            self._require_complete("state_dict()")
        return self._user_model.state_dict(*args, **kwargs)

    def _require_complete(self, what, stream="abele.weights(model)"):
        """Refuses what would lack tensors that other processes have. stream: what gives them one by one."""
        if wrapping.is_suspended() or not wrapping.has_meta_tensors(self._user_model):
            return  # without a turn: other threads read the weights of a model that is being compiled
        with self._lock:
            self._native.requireComplete(
                what,
                "in all processes, abele.save_weights(folder, model) or abele.save_checkpoint(folder, model, step=n); "
                f"dict({stream}) where each has the memory for all",
            )

    @one_at_a_time
    def copyWeightsToDevice(self) -> None:
        """Copies the model's parameters and buffers to the device. Device progress that was not read is lost."""
        self._follow_buffers()
        self._native.upload()
        self._wrap_replaced()

    def _wrap_replaced(self):
        """Tensors that were put in place of others ask for the newest weights, too."""
        if self._training and self._has_model:
            with wrapping.without_pull():
                wrapping.wrap_tensors(self._model, self)

    @one_at_a_time
    def copyNamedBuffersToDevice(self) -> None:
        """Uploads the buffers that opts.updatableNamedBuffers lists."""
        session = self._native.compiled("copyNamedBuffersToDevice")
        names = self._options._Popart.options.get("updatableNamedBuffers")
        if not names:
            raise user_error("E0702", "no buffers are listed", remedy="opts.updatableNamedBuffers([...])")
        session.copyBuffersToDevice(list(names))

    @one_at_a_time
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Loads into the model and, if attached, uploads. Returns torch's named tuple."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._native.isAttached() and self.isCompiled():
            self.copyWeightsToDevice()
        return result
