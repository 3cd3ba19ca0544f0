"""The optimizer of a training executor.

Source: spec optim.md, sections 5 and 6.
"""

from . import _host_updates, _optimizer_spec, optim, wrapping
from ._errors import refused, userError
from ._logging import logger
from ._one_at_a_time import oneAtATime
from .enums import MeanReductionStrategy


class OptimizerSync:
    """Part of Executor."""

    @oneAtATime
    def setOptimizer(self, optimizer):
        """Applies new values of the optimizer (learning rate, ...) from the next step on."""
        if not self._training:
            raise refused(AssertionError, "E0706 optimizer: setOptimizer needs a model wrapped for training")
        self._useOptimizer(optimizer)
        if self._watch is not None:
            self._watch.check(optimizer)

    def _useOptimizer(self, optimizer):
        is_on_host = self._policy.torch_updates and _host_updates.isOnHost(optimizer)
        if self._optimizer is not None and is_on_host != (self._host_updates is not None):
            raise userError(
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
        native = _optimizer_spec.nativeOf(optimizer, self._policy)
        self._chooseMeanStrategy(optimizer)
        if optimizer is self._optimizer:
            self._native.setOptimizer(self._native_optimizer)  # it knows which state the devices have
            return
        # First, so that an optimizer that the program cannot take leaves the previous one in place.
        self._native.setOptimizer(native)
        self._native_optimizer = native
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer._disconnect()
        self._optimizer = optimizer
        _optimizer_spec.warnOfSubclass(optimizer)
        _optimizer_spec.warnOfStepHooks(optimizer)
        if self._watch is None:
            self._watch = _optimizer_spec.AttributeWatch(optimizer, relaxed=self._options.relax_optimizer_checks)
        if isinstance(optimizer, optim.Optimizer):
            optimizer._connect(self)
        else:
            _optimizer_spec.askBeforeStateDict(optimizer, self)

    def _updateOnHost(self):
        """Runs the optimizer's own step() with the gradients of the call that has ended."""
        self.copyWeightsToHostIfNeeded()  # for buffers that forward wrote
        sums = self._native.session().gradientSums()
        with wrapping.withoutPull():
            self._host_updates.run(dict(self._model.named_parameters()), sums)
        self.copyWeightsToDevice()

    def _chooseMeanStrategy(self, optimizer):
        """float16 gradient sums need the running mean, and the compiler must know it."""
        running = MeanReductionStrategy.Running
        key = "meanAccumulationAndReplicationReductionStrategy"
        if not _optimizer_spec.needsRunningMean(optimizer) or self._options.Training(key) == running:
            return
        if self.isCompiled():
            raise refused(
                ValueError,
                "E0706 optimizer: accum_type=torch.float16 needs MeanReductionStrategy.Running, which the model was "
                "not compiled with",
            )
        self._options.Training.set(**{key: running})

    def _requireWholeState(self, what):
        """Raises if the state would lack the part of other processes."""
        if self.isCompiled():
            self._requireComplete(what, "abele.optimizer_state(model)")

    @oneAtATime
    def _pullOptimizerState(self):
        """Copies the device's optimizer state into the optimizer."""
        self._native.downloadOptimizerState()
