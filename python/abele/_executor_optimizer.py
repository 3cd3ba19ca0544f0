"""The optimizer of a training executor and its state on the device.

Source: spec optim.md, sections 5 and 6.
"""

from . import _optimizer_spec, _torch_state, optim, wrapping
from ._errors import refused
from ._logging import logger
from ._native import core
from ._one_at_a_time import oneAtATime
from .enums import ConnectionType, MeanReductionStrategy


class OptimizerSync:
    """Part of Executor."""

    @oneAtATime
    def setOptimizer(self, optimizer):
        """Makes new values of the optimizer (learning rate, ...) count from the next step on."""
        if not self._training:
            raise refused(AssertionError, "E0706 optimizer: setOptimizer needs a model wrapped for training")
        self._requireUsable(optimizer)
        if self.isCompiled():
            # First: an optimizer that the program cannot take leaves the one before in place.
            if self._constants is not None:
                self._constants.requireSame(self._constantsOf(optimizer))
            self._send(self._native.session(), optimizer)
        self._useOptimizer(optimizer)
        if self._watch is not None:
            self._watch.check(optimizer)

    def _send(self, session, optimizer):
        """The optimizer's values to the device, if they are others than the last."""
        values = self._valuesOf(optimizer)
        if values is None or self._sent is None or not values.hasSameNumbers(self._sent):
            session.setOptimizer(self._specOf(optimizer))
            self._sent = values

    def _valuesOf(self, optimizer):
        return None if optimizer is None else _optimizer_spec.fieldsOf(optimizer, as_torch=self._as_torch)

    def _warnOfUnsent(self):
        """Values that changed on the optimizer count only after setOptimizer."""
        if self._sent is None or self._has_unsent:
            return
        name = _optimizer_spec.changed(self._sent, self._valuesOf(self._optimizer))
        if name is not None:
            self._has_unsent = True  # said once
            logger.warning(
                "%s changed on the optimizer, and the device still has the old value: call setOptimizer(optimizer) of "
                "the executor after such a change",
                name,
            )

    def _constantsOf(self, optimizer):
        automatic = self._options._Popart.options.get("automaticLossScalingSettings.enabled")
        return _optimizer_spec.Constants(optimizer, scaling_varies=bool(automatic))

    @property
    def _as_torch(self):
        """Are updates torch's, where PopTorch's rules are others?"""
        return self._policy.torch_updates

    def _requireUsable(self, optimizer):
        _optimizer_spec.kindOf(optimizer)
        _optimizer_spec.requireValues(optimizer, as_torch=self._as_torch)
        self._chooseMeanStrategy(optimizer)

    def _useOptimizer(self, optimizer):
        if optimizer is self._optimizer:
            return
        if isinstance(self._optimizer, optim.Optimizer):
            self._optimizer._disconnect()
        self._optimizer = optimizer
        self._host_state = None
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
            raise refused(
                ValueError,
                "E0706 optimizer: accum_type=torch.float16 needs MeanReductionStrategy.Running, which the model was "
                "not compiled with",
            )
        self._options.Training.set(**{key: running})

    def _optimizerSpec(self):
        if not self._training or self._optimizer is None:
            return core().OptimizerSpec()
        return self._specOf(self._optimizer)

    def _specOf(self, optimizer):
        with wrapping.withoutPull():
            return _optimizer_spec.toSpec(optimizer, self._namedParameters(), as_torch=self._as_torch)

    def _namedParameters(self):
        return dict(self._model.named_parameters())

    # State -----------------------------------------------------------------------------------------------------------
    @property
    def _has_torch_state(self):
        """Is the optimizer a plain one of torch, whose state is in optimizer.state?"""
        return self._optimizer is not None and not isinstance(self._optimizer, optim.Optimizer)

    @oneAtATime
    def _pullOptimizerState(self):
        """Brings the device's optimizer state into the optimizer."""
        if self._options.connection_type == ConnectionType.Never or not self.isCompiled():
            return  # nothing was ever on a device
        with wrapping.withoutPull():
            if self._has_torch_state:
                state = self._native.session().optimizerState()
                _torch_state.toTorch(self._optimizer, state, self._namedParameters(), self._updates)
                self._host_state = self._optimizer.state
                self._state_is_stale = False
            elif self._optimizer is not None:
                self._optimizer._device_state = _optimizer_spec.readState(
                    self._optimizer, self._native.session().optimizerState(), self._namedParameters()
                )
                self._optimizer.host_state_is_dirty = False

    def _hasNewState(self):
        """Has the optimizer a state that the device does not have?"""
        optimizer = self._optimizer
        if self._has_torch_state:
            # load_state_dict() puts another dict in its place.
            return optimizer.state is not self._host_state and bool(optimizer.state)
        return optimizer is not None and optimizer.ipu_state_is_dirty

    def _uploadOptimizerState(self):
        """Takes over a state that was loaded into the optimizer, or that it had when the model was wrapped."""
        optimizer, session = self._optimizer, self._native.session()
        if self._has_torch_state:
            if optimizer.state:
                with wrapping.withoutPull():
                    current = session.optimizerState()
                    state, self._updates = _torch_state.fromTorch(optimizer, current, self._namedParameters())
                self._send(session, optimizer)
                session.setOptimizerState(state)
            self._host_state = optimizer.state
            self._state_is_stale = False
        elif optimizer is None:
            return
        elif optimizer.ipu_state_is_dirty and optimizer.has_state():
            self._send(session, optimizer)  # a loaded state has the values that it was saved with
            session.setOptimizerState(
                _optimizer_spec.nativeState(optimizer._device_state["ipu_state"], session.optimizerState())
            )
            optimizer.ipu_state_is_dirty = False
        else:
            optimizer.host_state_is_dirty = True
