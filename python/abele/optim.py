"""Optimizers with the attributes that PopTorch programs set. The device has its own implementation of each.

Source: spec optim.md, sections 1, 2 and 6.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ._errors import format_message, refused
from ._logging import logger


class VariableAttributes:
    """Which attributes of an optimizer may change after compilation."""

    def __init__(self, variable_attributes, allowed_attributes):
        self._variable = list(variable_attributes)
        self._allowed = list(allowed_attributes)
        self._marked = set()  # attributes marked by markAsConstant

    def isConstant(self, attr: str) -> bool:
        """True if the attribute is fixed at compilation."""
        return attr not in self._variable

    def _isMarkedConstant(self, attr):
        """True if markAsConstant marked it."""
        return attr in self._marked

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


# Arguments beyond torch's, and their default values.
_OWN_ARGUMENTS = {
    "loss_scaling": 1.0,
    "use_combined_accum": False,
    "accum_type": torch.float32,
    "velocity_accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
    "max_grad_norm": float("inf"),
    "bias_correction": True,
    "use_tf_variant": False,
}
# Keys of the result of state_dict().
_STATE_DICT = {"ipu_state", "ipu_param", "state", "param_groups"}
# Arguments that say how torch computes. They cannot be marked as variable.
_HINTS = ("maximize", "foreach", "capturable", "differentiable", "fused")


def _require_tensors(name, tensors):
    """Checks a part of a state dict: None, or tensors by name, as state_dict() makes it."""
    is_dict = isinstance(tensors, Mapping)
    if tensors is None or (
        is_dict and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in tensors.items())
    ):
        return
    wrong = [f"{k!r}: {type(v).__name__}" for k, v in tensors.items()] if is_dict else [type(tensors).__name__]
    raise refused(
        RuntimeError,
        format_message(
            "E0706",
            f"{name} of the state dict is damaged",
            found=", ".join(wrong[:3]),
            expected="None, or a dict of names and tensors",
            remedy="load what state_dict() returned",
        ),
    )


class Optimizer:
    """Common base of the optimizers of this module: variable attributes and the device's state."""

    def _start(self, construct, arguments):
        """Runs the whole constructor.

        Args:
            construct: torch's constructor.
            arguments: locals() of the constructor. None means that an argument was not given.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        params = given.pop("params")
        given.pop("self")
        velocity_scaling = given.get("velocity_scaling")
        own = {name: given.pop(name, default) for name, default in _OWN_ARGUMENTS.items() if name in arguments}
        for name, dtype in own.items():
            if name.endswith("accum_type") and dtype not in (torch.float16, torch.float32):
                raise refused(AssertionError, f"{name} must be torch.float16 or torch.float32, got {dtype}")
        for name, value in own.items():  # refuses "False", which is a string and therefore true
            if isinstance(_OWN_ARGUMENTS[name], bool) and value not in (True, False):
                raise refused(AssertionError, f"{name} must be True or False, got {value!r}")
        construct(self, params, **{name: value for name, value in given.items() if name != "velocity_scaling"})
        if own.get("use_combined_accum"):
            self.defaults["velocity_scaling"] = 1.0 if velocity_scaling is None else velocity_scaling
            for group in self.param_groups:
                group.setdefault("velocity_scaling", self.defaults["velocity_scaling"])
        elif velocity_scaling is not None:
            logger.warning("velocity_scaling is ignored because use_combined_accum is False")
        for name, value in own.items():
            setattr(self, name, bool(value) if isinstance(_OWN_ARGUMENTS[name], bool) else value)
        self._own = [*own, "_own", "variable_attrs", "_device_state"]
        variable = [name for name in given if name not in _HINTS]
        if arguments["loss_scaling"] is not None:
            variable.append("loss_scaling")
        self.variable_attrs = VariableAttributes(variable, [*self.defaults, "loss_scaling"])
        self._device_state = {"ipu_state": None, "ipu_param": None}
        self._executor = None
        self.ipu_state_is_dirty = False
        self.host_state_is_dirty = False

    def has_state(self) -> bool:
        """True if the host holds device state."""
        return self._device_state["ipu_state"] is not None

    def get_state_dict(self) -> dict[str, Any]:
        """The device's part of the state. Reads it back first if the device has a newer one."""
        executor = self._executor() if self._executor is not None else None
        if self.host_state_is_dirty and executor is not None:
            executor._pull_optimizer_state()
        return dict(self._device_state)

    def set_state_dict(self, state: dict[str, Any]) -> None:
        """Replaces the device's part of the state. The next run uploads it."""
        self._device_state = {"ipu_state": state["ipu_state"], "ipu_param": state["ipu_param"]}
        self.ipu_state_is_dirty = self.has_state()
        self.host_state_is_dirty = False

    def state_dict(self) -> dict[str, Any]:
        """Device state and parameters, and torch's own state dict."""
        self._require_whole_state("state_dict() of the optimizer")
        return {**self.get_state_dict(), **super().state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a result of state_dict. The next run uploads it.

        Warns about entries that the dict lacks, which keep their value on the devices, and about entries that the
        devices do not have, which are left out.

        Raises:
            RuntimeError: the dict is empty or comes from another kind of optimizer.
        """
        is_dict = isinstance(state_dict, Mapping)
        if not is_dict or "ipu_state" not in state_dict or "ipu_param" not in state_dict:
            raise refused(
                RuntimeError, "the state dict has no ipu_state and ipu_param: it was not saved by a poptorch optimizer"
            )
        for name in ("ipu_state", "ipu_param"):
            _require_tensors(name, state_dict[name])
        for name in state_dict:
            if name not in _STATE_DICT:
                logger.warning("load_state_dict(): %r is left out: the optimizer keeps nothing of that name", name)
        if "state" in state_dict and "param_groups" in state_dict:
            super().load_state_dict({"state": state_dict["state"], "param_groups": state_dict["param_groups"]})
        self.set_state_dict(state_dict)

    def _require_whole_state(self, what):
        executor = self._executor() if self._executor is not None else None
        if executor is not None:
            executor._require_whole_state(what)

    def _connect(self, executor):
        self._executor = weakref.ref(executor)

    def _disconnect(self):
        self.get_state_dict()
        self._executor = None
        self.host_state_is_dirty = False

    def __getstate__(self):
        self._require_whole_state("a pickle or copy of the optimizer")
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
        self._start(torch.optim.SGD.__init__, locals())


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
        self._start(torch.optim.Adam.__init__, locals())


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
        self._start(torch.optim.AdamW.__init__, locals())


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
        self._start(torch.optim.RMSprop.__init__, locals())
        require_one_centered(self)


def require_one_centered(optimizer):
    """Raises unless all groups of RMSprop have the same value of centered, because they share the form of the state."""
    if len({bool(group["centered"]) for group in optimizer.param_groups}) != 1:
        raise refused(
            AssertionError,
            "E0706 optimizer: all groups must agree on centered\n  try       give all groups the same value, or none",
        )


class LAMB(Optimizer, torch.optim.Optimizer):
    """LAMB: AdamW whose step is scaled per parameter, by the norm of the parameter over the norm of the step.

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
        self._start(LAMB._construct, {**locals(), "max_grad_norm": None})
        self._own.append("max_weight_norm")

    def _construct(self, params, *, betas=(0.9, 0.999), **given):
        numbers = {"lr": 1e-3, "eps": 1e-8, "weight_decay": 1e-2, "max_weight_norm": 65500.0, **given}
        for name, value in numbers.items():
            if isinstance(value, str):
                raise refused(AssertionError, f"{name} is {value!r}, expected a number")
            if not value >= 0:
                raise refused(ValueError, f"{name} is {value}, expected a number >= 0")
        if not (isinstance(betas, tuple) and len(betas) == 2):
            raise refused(AssertionError, f"betas must be a tuple of two numbers, got {betas!r}")
        for index, beta in enumerate(betas):
            if not 0 <= beta < 1:
                raise refused(ValueError, f"betas[{index}] is {beta}, expected a number in [0, 1)")
        torch.optim.Optimizer.__init__(self, params, {**numbers, "betas": betas})
        self.max_weight_norm = numbers["max_weight_norm"]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One update on the host with the gradients of backward(). Returns the closure's result."""
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
