"""Optimizers with the attributes that PopTorch programs set. The device runs its own implementation of each of them.

Source: spec optim.md, sections 1, 2 and 6.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from ._errors import refused


class VariableAttributes:
    """Which attributes of an optimizer may change after compilation."""

    def __init__(self, variable_attributes, allowed_attributes):
        self._variable = list(variable_attributes)
        self._allowed = list(allowed_attributes)
        self._marked = set()  # by markAsConstant

    def isConstant(self, attr: str) -> bool:
        """True if the attribute is fixed at compilation."""
        return attr not in self._variable

    def markAsConstant(self, attr: str) -> None:
        """Fixes the attribute at compilation."""
        self._require(attr)
        self._marked.add(attr)
        if attr in self._variable:
            self._variable.remove(attr)

    def markAsVariable(self, attr: str) -> None:
        """Lets the attribute change after compilation."""
        self._require(attr)
        self._marked.discard(attr)
        if attr not in self._variable:
            self._variable.append(attr)

    def _require(self, attr):
        if attr not in self._allowed:
            raise refused(
                AssertionError, f"{attr!r} is no attribute of the optimizer; known: {', '.join(self._allowed)}"
            )


def _given(**values):
    """The arguments that were given."""
    return {name: value for name, value in values.items() if value is not None}


def _requireAccumType(**types):
    for name, dtype in types.items():
        if dtype not in (None, torch.float16, torch.float32):
            raise refused(AssertionError, f"{name} must be torch.float16 or torch.float32, got {dtype}")


class Optimizer:
    """Common base of the optimizers of this module: variable attributes and the device's state."""

    def _start(self, given, extras):
        """Requires: torch's constructor ran. given: constructor arguments that were given; extras: effective values."""
        for name, value in extras.items():
            setattr(self, name, value)
        self._own = [*extras, "_own", "variable_attrs", "_device_state"]
        self.variable_attrs = VariableAttributes(list(given), [*self.defaults, "loss_scaling"])
        self._device_state = {"ipu_state": None, "ipu_param": None}
        self._executor = None
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False

    def has_state(self) -> bool:
        """True if the host holds device state."""
        return self._device_state["ipu_state"] is not None

    def get_state_dict(self) -> dict[str, Any]:
        """The device's part of the state, read back first if it is newer there."""
        executor = self._executor() if self._executor is not None else None
        if self.host_state_is_dirty and executor is not None:
            executor._pullOptimizerState()
        return dict(self._device_state)

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the device's part of the state; it is uploaded at the next run."""
        self._device_state = {"ipu_state": state["ipu_state"], "ipu_param": state["ipu_param"]}
        self.ipu_state_is_dirty = self.has_state()
        self.host_state_is_dirty = False

    def state_dict(self) -> dict[str, Any]:
        """Device state and parameters, and torch's own state dict."""
        return {**self.get_state_dict(), **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what state_dict returned; the device takes it over at the next run.

        Raises:
            RuntimeError: the dict is empty or comes from another kind of optimizer.
        """
        if not state_dict or "ipu_state" not in state_dict or "ipu_param" not in state_dict:
            raise refused(
                RuntimeError, "the state dict has no ipu_state and ipu_param: it was not saved by a poptorch optimizer"
            )
        if "state" in state_dict and "param_groups" in state_dict:
            super().load_state_dict({"state": state_dict["state"], "param_groups": state_dict["param_groups"]})
        self.set_state_dict(state_dict)

    def _connect(self, executor):
        self._executor = weakref.ref(executor)

    def _disconnect(self):
        self.get_state_dict()
        self._executor = None
        self.host_state_is_dirty = False

    def __getstate__(self):
        self.get_state_dict()
        own = {name: self.__dict__[name] for name in self._own}
        return {
            **super().__getstate__(),
            **own,
            "_executor": None,
            "ipu_state_is_dirty": self.has_state(),
            "host_state_is_dirty": False,
        }


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent. Dampening applies to the first step too.

    Args: torch's, then loss_scaling, velocity_scaling, use_combined_accum, accum_type, velocity_accum_type,
    max_grad_norm.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        _requireAccumType(accum_type=accum_type, velocity_accum_type=velocity_accum_type)
        given = _given(
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            loss_scaling=loss_scaling,
            velocity_scaling=velocity_scaling,
        )
        torch.optim.SGD.__init__(
            self,
            params,
            lr,
            **_given(
                momentum=momentum,
                dampening=dampening,
                nesterov=nesterov,
                weight_decay=weight_decay,
                maximize=maximize,
                foreach=foreach,
                differentiable=differentiable,
            ),
        )
        if use_combined_accum:
            self.defaults["velocity_scaling"] = 1.0 if velocity_scaling is None else velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
        elif velocity_scaling is not None:
            from ._logging import logger

            logger.warning("velocity_scaling is ignored because use_combined_accum is False")
        self._start(
            given,
            {
                "loss_scaling": 1.0 if loss_scaling is None else loss_scaling,
                "use_combined_accum": bool(use_combined_accum),
                "accum_type": accum_type or torch.float32,
                "velocity_accum_type": velocity_accum_type or torch.float32,
                "max_grad_norm": float("inf") if max_grad_norm is None else max_grad_norm,
            },
        )


class Adam(Optimizer, torch.optim.Adam):
    """Adam. Args: torch's, then loss_scaling, accum_type, first_order_momentum_accum_type,
    second_order_momentum_accum_type, max_grad_norm."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: Any = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        torch_arguments = _given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        torch.optim.Adam.__init__(
            self,
            params,
            **torch_arguments,
            **_given(
                foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused
            ),
        )
        _startAdam(
            self,
            torch_arguments,
            loss_scaling,
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
            max_grad_norm,
        )


class AdamW(Optimizer, torch.optim.AdamW):
    """AdamW. Args: torch's, then loss_scaling, bias_correction (has no effect on the device), accum_type,
    first_order_momentum_accum_type, second_order_momentum_accum_type, max_grad_norm."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: Any = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        torch_arguments = _given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad)
        torch.optim.AdamW.__init__(
            self,
            params,
            **torch_arguments,
            **_given(
                foreach=foreach, maximize=maximize, capturable=capturable, differentiable=differentiable, fused=fused
            ),
        )
        _startAdam(
            self,
            torch_arguments,
            loss_scaling,
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
            max_grad_norm,
        )
        self.bias_correction = True if bias_correction is None else bias_correction
        self._own.append("bias_correction")


def _startAdam(optimizer, given, loss_scaling, accum_type, first_type, second_type, max_grad_norm):
    _requireAccumType(
        accum_type=accum_type, first_order_momentum_accum_type=first_type, second_order_momentum_accum_type=second_type
    )
    optimizer._start(
        {**given, **_given(loss_scaling=loss_scaling)},
        {
            "loss_scaling": 1.0 if loss_scaling is None else loss_scaling,
            "accum_type": accum_type or torch.float32,
            "first_order_momentum_accum_type": first_type or torch.float32,
            "second_order_momentum_accum_type": second_type or torch.float32,
            "max_grad_norm": float("inf") if max_grad_norm is None else max_grad_norm,
        },
    )


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop. Args: torch's, then loss_scaling, accum_type, first_order_momentum_accum_type,
    second_order_momentum_accum_type, use_tf_variant (epsilon under the root; the mean square starts at 1)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        torch_arguments = _given(
            lr=lr, alpha=alpha, eps=eps, weight_decay=weight_decay, momentum=momentum, centered=centered
        )
        torch.optim.RMSprop.__init__(
            self,
            params,
            **torch_arguments,
            **_given(foreach=foreach, maximize=maximize, differentiable=differentiable),
        )
        requireOneCentered(self)
        _requireAccumType(
            accum_type=accum_type,
            first_order_momentum_accum_type=first_order_momentum_accum_type,
            second_order_momentum_accum_type=second_order_momentum_accum_type,
        )
        self._start(
            {**torch_arguments, **_given(loss_scaling=loss_scaling)},
            {
                "loss_scaling": 1.0 if loss_scaling is None else loss_scaling,
                "accum_type": accum_type or torch.float32,
                "first_order_momentum_accum_type": first_order_momentum_accum_type or torch.float32,
                "second_order_momentum_accum_type": second_order_momentum_accum_type or torch.float32,
                "use_tf_variant": bool(use_tf_variant),
            },
        )


def requireOneCentered(optimizer):
    """Groups of RMSprop keep the same state."""
    if len({bool(group["centered"]) for group in optimizer.param_groups}) != 1:
        raise refused(
            AssertionError,
            "E0706 optimizer: all groups must agree on centered\n  try       give all groups the same value, or none",
        )


class LAMB(Optimizer, torch.optim.Optimizer):
    """LAMB: AdamW whose step is scaled, for each parameter, by the ratio of its norm to the step's.

    Args: params, lr, betas, eps, weight_decay, bias_correction, loss_scaling, max_weight_norm, accum_type,
    first_order_momentum_accum_type, second_order_momentum_accum_type. Source: spec optim.md, sections 1 and 3.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        given = _given(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, max_weight_norm=max_weight_norm)
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0}
        defaults.update(given)
        for name in ("lr", "eps", "weight_decay", "max_weight_norm"):
            if not defaults[name] >= 0:
                raise refused(ValueError, f"{name} is {defaults[name]}, expected a number >= 0")
        betas = defaults["betas"]
        if not (isinstance(betas, tuple) and len(betas) == 2):
            raise refused(AssertionError, f"betas must be a tuple of two numbers, got {betas!r}")
        for index, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise refused(ValueError, f"betas[{index}] is {beta}, expected a number in [0, 1)")
        torch.optim.Optimizer.__init__(self, params, defaults)
        self.max_weight_norm = defaults["max_weight_norm"]
        _startAdam(
            self,
            given,
            loss_scaling,
            accum_type,
            first_order_momentum_accum_type,
            second_order_momentum_accum_type,
            None,
        )
        self.bias_correction = True if bias_correction is None else bias_correction
        self._own += ["bias_correction", "max_weight_norm"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update on the host, with the gradients that backward() left. Returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter, group):
        state, gradient, (beta1, beta2) = self.state[parameter], parameter.grad, group["betas"]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        correction1, correction2 = (
            (1 - beta1 ** state["step"], 1 - beta2 ** state["step"]) if self.bias_correction else (1.0, 1.0)
        )
        average = state["exp_avg"].mul_(beta1).add_(gradient, alpha=1 - beta1)
        square = state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        update = (average / correction1) / (square / correction2).sqrt_().add_(group["eps"])
        if group["weight_decay"] != 0:
            update.add_(parameter, alpha=group["weight_decay"])
        weight_norm = min(_norm(parameter), self.max_weight_norm)
        update_norm = _norm(update)
        trust = 1.0 if weight_norm == 0 or update_norm == 0 else weight_norm / update_norm
        parameter.add_(update, alpha=-group["lr"] * trust)


def _norm(tensor):
    return torch.linalg.vector_norm(tensor, dtype=torch.float64).item()


__all__ = ["LAMB", "SGD", "Adam", "AdamW", "Optimizer", "RMSprop", "VariableAttributes"]
