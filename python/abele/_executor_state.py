"""Copies weights and optimizer state of an executor between host, device and checkpoints; tracks which side is newer.

Source: spec executor.md, section 6; optim.md, sections 5 and 6.
"""

from collections.abc import Mapping
from typing import Any

import torch

from . import _host_updates, _optimizer_spec, optim, wrapping
from ._errors import refused, user_error
from ._item_access import replaced
from ._logging import logger
from ._native import core
from ._one_at_a_time import one_at_a_time
from .checkpoint import take_values
from .enums import MeanReductionStrategy


class StateSync:
    """Part of Executor."""

    # Weights ----------------------------------------------------------------------------------------------------------
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
        """The user model's state_dict(), with the newest weights. If several processes hold the stages, all call it."""
        if not self._training:  # else the wrapped module asks
            self._require_complete("state_dict()")
        return self._user_model.state_dict(*args, **kwargs)

    def _require_complete(self, what, stream="abele.weights(model)"):
        """Raises if a result would lack tensors of other processes. stream: the call that yields tensors one by one."""
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
        """Copies the model's parameters and buffers to the device. Newer weights of the device that were not copied
        back are lost."""
        self._follow_buffers()
        self._native.upload()
        self._wrap_replaced()

    def _wrap_replaced(self):
        """Wraps tensors that replaced others, so that reading them also copies the newest weights to the host."""
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
        """Loads a state_dict() into the model, and uploads it if devices are attached. Returns torch's named tuple."""
        result = self._user_model.load_state_dict(state_dict, strict)
        if self._native.isAttached() and self.isCompiled():
            self.copyWeightsToDevice()
        return result

    # Optimizer --------------------------------------------------------------------------------------------------------
    @one_at_a_time
    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Applies new values of the optimizer (learning rate, ...) from the next step on."""
        if not self._training:
            raise refused(AssertionError, "E0706 optimizer: setOptimizer needs a model wrapped for training")
        self._use_optimizer(optimizer)
        if self._watch is not None:
            self._watch.check(optimizer)

    def _use_optimizer(self, optimizer):
        is_on_host = self._policy.torch_updates and _host_updates.is_on_host(optimizer)
        if self._optimizer is not None and is_on_host != (self._host_updates is not None):
            raise user_error(
                "E0706",
                "one of two optimizers updates on the devices, the other on the host",
                found=type(optimizer).__name__,
                expected=f"one as {type(self._optimizer).__name__}",
                remedy="destroy() the model, and wrap it again with the other optimizer",
            )
        if is_on_host:
            self._native.requireHostUpdates()
            self._host_updates = _host_updates.HostUpdates(optimizer)
            self._optimizer = optimizer
            logger.info("%s updates the weights on the host, by its own step()", type(optimizer).__name__)
            return
        native = _optimizer_spec.native_of(optimizer, self._policy)
        self._choose_mean_strategy(optimizer)
        if optimizer is self._optimizer:
            self._native.setOptimizer(self._native_optimizer)  # it knows which state the devices have
            return
        # First, so that an optimizer that the program cannot take leaves the previous one in place.
        self._native.setOptimizer(native)
        self._native_optimizer = native
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer._disconnect()
        self._optimizer = optimizer
        _optimizer_spec.warn_of_subclass(optimizer)
        _optimizer_spec.warn_of_step_hooks(optimizer)
        if self._watch is None:
            self._watch = _optimizer_spec.AttributeWatch(optimizer, relaxed=self._options.relax_optimizer_checks)
        if isinstance(optimizer, optim.Optimizer):
            optimizer._connect(self)
        else:
            _optimizer_spec.ask_before_state_dict(optimizer, self)

    def _choose_mean_strategy(self, optimizer):
        """float16 gradient sums need the running mean, and the compiler must know it."""
        running = MeanReductionStrategy.Running
        key = "meanAccumulationAndReplicationReductionStrategy"
        if not _optimizer_spec.needs_running_mean(optimizer) or self._options.Training(key) == running:
            return
        if self.isCompiled():
            raise refused(
                ValueError,
                "E0706 optimizer: accum_type=torch.float16 needs MeanReductionStrategy.Running, which the model was "
                "not compiled with",
            )
        self._options.Training.set(**{key: running})

    def _require_whole_state(self, what):
        """Raises if the state would lack the part of other processes."""
        if self.isCompiled():
            self._require_complete(what, "abele.optimizer_state(model)")

    @one_at_a_time
    def _pull_optimizer_state(self):
        """Copies the device's optimizer state into the optimizer."""
        self._native.downloadOptimizerState()

    # Checkpoints, for checkpoint.py -----------------------------------------------------------------------------------
    @one_at_a_time
    def _save_checkpoint(self, write):
        """write(checkpoint): adds the other parts and writes the checkpoint, in all processes."""
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
