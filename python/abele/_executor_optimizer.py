"""The optimizer of a training executor.

Source: spec optim.md, sections 5 and 6.
"""

import torch

from . import _host_updates, _optimizer_spec, optim, wrapping
from ._errors import refused, user_error
from ._logging import logger
from ._one_at_a_time import one_at_a_time
from .enums import MeanReductionStrategy


class OptimizerSync:
    """Part of Executor."""

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
            self._host_updates = _host_updates.HostUpdates(optimizer, self._options)
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

    def _update_on_host(self):
        """Runs the optimizer's own step() with the gradients of the call that has ended."""
        self.copyWeightsToHostIfNeeded()  # for buffers that forward wrote
        sums = self._native.session().gradientSums()
        with wrapping.without_pull():
            self._host_updates.run(dict(self._model.named_parameters()), sums)
        self.copyWeightsToDevice()

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
