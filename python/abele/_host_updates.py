"""Updates by optimizers that the devices do not implement: their own step() on the host, with the devices' gradients.

Source: ours; step() is eager PyTorch's.
"""

import inspect

import torch

from . import _optimizer_spec, optim
from ._errors import user_error


def is_on_host(optimizer):
    """True for an optimizer of torch, or of the program, that the devices do not implement."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, optim.Optimizer):
        return False
    return _optimizer_spec.is_foreign(optimizer) or any(group.get("amsgrad") for group in optimizer.param_groups)


def _refuse(optimizer, what, remedy):
    name = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    raise user_error("E0706", f"{name} updates the weights on the host, {what}", remedy=remedy)


class HostUpdates:
    """The optimizer of an executor that updates on the host.

    Raises:
        abele.Error: E0706 for an optimizer whose step() cannot be called.
    """

    def __init__(self, optimizer):
        step = inspect.unwrap(type(optimizer).step)  # torch wraps step when an optimizer is made
        if step is inspect.unwrap(torch.optim.Optimizer.step):
            _refuse(optimizer, "and has no step()", "write its step(), or take an optimizer of torch.optim")
        closure = inspect.signature(step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            _refuse(optimizer, "and its step() needs a closure", "take an optimizer whose step() needs none")
        self.optimizer = optimizer

    def require_state_of_devices(self):
        """Raises, because the devices have no state."""
        _refuse(self.optimizer, "where its state is, too", "optimizer.state_dict()")

    def state(self):
        """The optimizer's state, for checkpoints."""
        return {"of": type(self.optimizer).__name__, "state": self.optimizer.state_dict()}

    def resume(self, given):
        """Takes over a state() of before. Raises, without any change: E0706 if it is another optimizer's."""
        name = type(self.optimizer).__name__
        try:
            fits = given["of"] == name
            if fits:
                self.optimizer.load_state_dict(given["state"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            fits, given = False, f"{type(error).__name__}: {error}"
        if not fits:
            raise user_error(
                "E0706",
                "the checkpoint was written with another optimizer than the model's",
                found=given["of"] if isinstance(given, dict) else str(given),
                expected=name,
                remedy="make the model with the same optimizer as the checkpoint's",
            )
