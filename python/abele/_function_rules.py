"""Rules for functions of torch on a thread that captures forward: a mode of torch functions with one table of rules.
The mode does not affect other threads.
"""

import sys

import torch
from torch.overrides import TorchFunctionMode

from ._native import isCapturing

_HANDING_ON = (torch.overrides.handle_torch_function.__code__,)
# Arguments that torch 2.13 does not hand on to modes.
_KEPT_BACK = {torch.nn.functional.l1_loss: "weight", torch.chain_matmul: "out"}


def _with_kept_back(func, kwargs, frame):
    """The named arguments, with the one that the function has kept back. frame: which has called the mode."""
    own = frame.f_back.f_locals if frame.f_code in _HANDING_ON else {}
    name = _KEPT_BACK[func]
    return kwargs if own.get(name) is None else {**kwargs, name: own[name]}


class FunctionRules(TorchFunctionMode):
    """While active, table[function](*args, **kwargs) is called instead of a function of torch.

    Torch calls its modes when a program calls one of its functions, reads an attribute of a tensor, or uses an operator
    of Python. It does not call them for calls inside a function written in Python, or inside a rule.
    Threads: the one that entered it, and those to which torch takes it.

    Args:
        call_operator: called in the place of torch's operators that take functions: call_operator(operator, *args).
            None: they are called themselves.
    """

    def __init__(self, call_operator=None):
        super().__init__()
        self._table = {}
        self._call_operator = call_operator
        self._caller = None

    def add(self, function, make):
        """Sets the rule for a function: make(the function, or its rule so far)."""
        self._table[function] = make(self._table.get(function, function))

    def clear(self):
        """Forgets all rules. They hold the model and this object, and both would wait for a collection."""
        self._table.clear()

    def caller(self):
        """The frame that has called the function whose rule is running."""
        frame = self._caller
        while frame.f_code in _HANDING_ON:  # a function of Python's asks by its first line
            frame = frame.f_back.f_back
        return frame

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in _KEPT_BACK:
            kwargs = _with_kept_back(func, kwargs or {}, sys._getframe(1))
        if not isCapturing():  # a function that the host runs in every step
            return func(*args, **(kwargs or {}))
        rule = self._table.get(func)
        if rule is not None:
            outer, self._caller = self._caller, sys._getframe(1)
            try:
                return rule(*args, **(kwargs or {}))
            finally:
                self._caller = outer
        if self._call_operator and isinstance(func, torch._ops.HigherOrderOperator):
            return self._call_operator(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def getter_of(name):
    """The key of a tensor's attribute in the table."""
    return getattr(torch.Tensor, name).__get__
