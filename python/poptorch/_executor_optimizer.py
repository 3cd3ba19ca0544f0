"""The optimizer of a training executor and its state on the device.

Source: spec optim.md, sections 5 and 6.
"""

from . import _optimizer_spec, optim, wrapping
from ._native import core
from ._one_at_a_time import oneAtATime
from .enums import ConnectionType, MeanReductionStrategy


class OptimizerSync:
    """Part of PoplarExecutor."""

    @oneAtATime
    def setOptimizer(self, optimizer):
        """Makes new values of the optimizer (learning rate, ...) count from the next step on."""
        assert self._training, "setOptimizer needs a model wrapped for training"
        self._requireUsable(optimizer)
        if self.isCompiled():
            # First: an optimizer that the program cannot take leaves the one before in place.
            if self._constants is not None:
                self._constants.requireSame(self._constantsOf(optimizer))
            self._send(self._executable.session, optimizer)
        self._useOptimizer(optimizer)
        if self._watch is not None:
            self._watch.check(optimizer)

    def _send(self, session, optimizer):
        """The optimizer's values to the device, if they are others than the last."""
        values = _optimizer_spec.describe(optimizer)
        if values != self._sent:
            session.setOptimizer(self._specOf(optimizer))
            self._sent = values

    def _constantsOf(self, optimizer):
        automatic = self._options._Popart.options.get("automaticLossScalingSettings.enabled")
        return _optimizer_spec.Constants(optimizer, scaling_varies=bool(automatic))

    def _requireUsable(self, optimizer):
        _optimizer_spec.kindOf(optimizer)
        _optimizer_spec.requireValues(optimizer)
        self._chooseMeanStrategy(optimizer)

    def _useOptimizer(self, optimizer):
        if optimizer is self._optimizer:
            return
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer._disconnect()
        self._optimizer = optimizer
        if optimizer is not None:
            _optimizer_spec.warnOfSubclass(optimizer)
        if optimizer is not None and self._watch is None:
            self._watch = _optimizer_spec.AttributeWatch(optimizer, relaxed=self._options.relax_optimizer_checks)
        if isinstance(optimizer, optim.Optimizer):
            optimizer._connect(self)

    def _chooseMeanStrategy(self, optimizer):
        """float16 gradient sums need the running mean, which has to be known at compile."""
        running = MeanReductionStrategy.Running
        key = "meanAccumulationAndReplicationReductionStrategy"
        if not _optimizer_spec.needsRunningMean(optimizer) or self._options.Training(key) == running:
            return
        if self.isCompiled():
            raise ValueError(
                "accum_type=torch.float16 needs MeanReductionStrategy.Running, which the model was not compiled with"
            )
        self._options.Training.set(**{key: running})

    def _optimizerSpec(self):
        if not self._training or self._optimizer is None:
            return core().OptimizerSpec()
        return self._specOf(self._optimizer)

    def _specOf(self, optimizer):
        with wrapping.withoutPull():
            return _optimizer_spec.toSpec(
                optimizer, dict(self._model.named_parameters()), defaults_apply=self._enforce_limits
            )

    @oneAtATime
    def _pullOptimizerState(self):
        """Brings the device's optimizer state into the optimizer."""
        if self._options.connection_type == ConnectionType.Never:
            return  # nothing was ever on a device
        if isinstance(self._optimizer, optim.Optimizer) and self.isCompiled():
            with wrapping.withoutPull():
                self._optimizer._device_state = _optimizer_spec.readState(
                    self._optimizer, self._executable.session.optimizerState(), dict(self._model.named_parameters())
                )
            self._optimizer.host_state_is_dirty = False

    def _uploadOptimizerState(self, program):
        optimizer = self._optimizer
        if not isinstance(optimizer, optim.Optimizer):
            return
        if optimizer.ipu_state_is_dirty and optimizer.has_state():
            self._send(program.session, optimizer)  # a loaded state has the values that it was saved with
            program.session.setOptimizerState(
                _optimizer_spec.nativeState(optimizer._device_state["ipu_state"], program.session.optimizerState())
            )
            optimizer.ipu_state_is_dirty = False
        else:
            optimizer.host_state_is_dirty = True
