"""Rules for functions of torch on a thread that captures forward: a mode of torch functions with one table of rules.
The mode does not affect other threads.
"""

import sys
import types as kinds

import torch
from torch.overrides import TorchFunctionMode

from . import wrapping
from ._native import core

_HANDING_ON = (torch.overrides.handle_torch_function.__code__,)
# Kinds of functions that take no functions: HigherOrderOperator is an abstract class, and slow to ask.
_PLAIN = (kinds.BuiltinFunctionType, kinds.FunctionType, kinds.MethodDescriptorType, kinds.MethodWrapperType)
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
        self._is_capturing = core().isCapturing

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
        kwargs = kwargs or {}
        if func in _KEPT_BACK:
            kwargs = _with_kept_back(func, kwargs, sys._getframe(1))
        if not self._is_capturing():  # a function that the host runs in every step
            return func(*args, **kwargs)
        if types and wrapping.are_wrappers(types):  # no need to ask them: a capture reads the weights of the host
            with torch._C.DisableTorchFunctionSubclass():
                return self._call(func, args, kwargs, sys._getframe(1))
        return self._call(func, args, kwargs, sys._getframe(1))

    def _call(self, func, args, kwargs, caller):
        rule = self._table.get(func)
        if rule is not None:
            outer, self._caller = self._caller, caller
            try:
                return rule(*args, **kwargs)
            finally:
                self._caller = outer
        is_plain = type(func) in _PLAIN or not isinstance(func, torch._ops.HigherOrderOperator)
        if self._call_operator and not is_plain:
            return self._call_operator(func, *args, **kwargs)
        return func(*args, **kwargs)


def getter_of(name):
    """The key of a tensor's attribute in the table."""
    return getattr(torch.Tensor, name).__get__
