"""The weight update of a Keras optimizer as a compiled program, captured from the optimizer's own `apply`.

The program works in the memory of Keras' weights and optimizer variables, so nothing is copied and all code reads the
newest values. If a capture would freeze values that may change, the host updates.
"""

import torch
from keras.src import backend
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.schedules.learning_rate_schedule import LearningRateSchedule

from .._errors import Error
from .._function_rules import FunctionRules
from .._native import core
from ..enums import ConnectionType
from ..options import Options
from ._plan import logger
from ._programs import OwnedSource, shares_all
from ._step import plain_tracebacks

_PLAIN = (bool, int, float, str, type(None))
_MOST_CAPTURES = 8  # for one execution: if numbers change often, Keras itself is faster


def _parts_of(optimizer, weights):
    """The objects whose attributes a capture takes as constants."""
    constraints = [weight.constraint for weight in weights if weight.constraint is not None]
    return [optimizer, optimizer._learning_rate, *constraints]


def _constants_of(optimizer, weights):
    """All values that a captured update would freeze; if they change, the update is captured again."""
    parts = _parts_of(optimizer, weights)
    excluded = sorted(getattr(optimizer, "_exclude_from_weight_decay", None) or [], key=str)
    numbers = [[each for each in vars(part).items() if isinstance(each[1], _PLAIN)] for part in parts]
    return [id(each) for each in [*parts, *weights]], numbers, excluded


def _host_reason(optimizer, weights):
    """The reason why the update cannot be captured with all values that change its numbers; None: a capture can be
    tried."""
    _, rate, *constraints = _parts_of(optimizer, weights)
    if not isinstance(rate, (backend.Variable, LearningRateSchedule)):
        return "the learning rate is a function"
    for part in (optimizer, rate, *constraints):
        if not type(part).__module__.startswith("keras.src."):
            return f"{type(part).__name__} is not Keras' own"
    held = [one for each in vars(optimizer).values() for one in (each if isinstance(each, list) else [each])]
    if any(isinstance(each, BaseOptimizer) for each in held):
        return f"{type(optimizer).__name__} holds other optimizers"
    if any(getattr(weight, "overwrite_with_gradient", False) for weight in weights):
        return "variables are overwritten with their gradients"
    return None


# The functions torch._foreach_* that on the CPU call the operator of this name on one tensor after the other. Others
# stay lists.
_OF_LISTS = ("abs", "add", "add_", "div", "div_", "mul", "mul_", "sqrt", "sqrt_", "sub", "sub_")


def _add_scaled(tensor, other, *, alpha=1):
    """Torch reads the factor of a sum as a number; here it remains a value on the device."""
    if not isinstance(alpha, torch.Tensor):
        return tensor.add_(other, alpha=alpha)
    return torch.ops.abele_op.add_scaled_(tensor, other, alpha)


def _one_by_one(name):
    """An operator on lists of tensors as operators on the tensors."""
    operator = _add_scaled if name == "add_" else getattr(torch.Tensor, name)

    def each(first, *rest, **kwargs):
        results = []
        for index, tensor in enumerate(first):
            others = [item[index] if isinstance(item, (list, tuple)) else item for item in rest]
            results.append(operator(tensor, *others, **kwargs))
        return None if name.endswith("_") else tuple(results)

    return each


def _lists_one_by_one():
    """Operators on lists become operators on tensors, which can be joined and whose results are in planned memory."""
    rules = FunctionRules()
    for name in _OF_LISTS:
        rules.add(getattr(torch, f"_foreach_{name}"), lambda _, name=name: _one_by_one(name))
    return rules


class _UpdateModule(torch.nn.Module):
    """forward(*sums of gradients). Parameters v0, v1, ... are the weights and the optimizer's variables."""

    def __init__(self, optimizer, weights, is_given, divisor):
        super().__init__()
        self.variables = [*weights, *optimizer.variables]
        for index, variable in enumerate(self.variables):
            self.register_parameter(f"v{index}", variable._value)
        self._run = lambda gradients: _apply(optimizer, weights, is_given, divisor, gradients)

    def forward(self, *gradients):
        self._run(gradients)
        return ()


def _apply(optimizer, weights, is_given, divisor, gradients):
    rest = iter(gradients)
    given = [next(rest).view(tuple(v.shape)) if has else None for v, has in zip(weights, is_given, strict=True)]
    with plain_tracebacks(), _lists_one_by_one():
        optimizer.apply(mean_of(given, divisor), weights)


def mean_of(sums, divisor):
    """Computes the gradients of an update from their sums."""
    return sums if divisor == 1 else [None if each is None else each / divisor for each in sums]


class _Program:
    """An update by one optimizer of weights of one kind."""

    def __init__(self, optimizer, weights, is_given, divisor, owner, inputs):
        self._module = _UpdateModule(optimizer, weights, is_given, divisor)
        self._values = [variable._value for variable in self._module.variables]
        rules = core().Policy(many_programs=False)
        options = Options()
        options.connectionType(ConnectionType.Always)
        source = OwnedSource(self._module, options, training=False, policy=rules, owner=owner)
        self._native = core().Model(source, False, options, rules)
        with torch.no_grad():
            self._native.choose(inputs, "", (tuple(inputs), {}))
        self.is_shared = shares_all(self._native.session(), self._module.variables)

    def fits(self):
        """Whether Keras still has its variables in the same tensors."""
        variables = self._module.variables
        return all(variable._value is value for variable, value in zip(variables, self._values, strict=True))

    def run(self, inputs):
        self._native.step(inputs, inputs)


class Updates:
    """The weight updates of one execution. reason: why the host does them; None: a program does."""

    def __init__(self, owner):
        self._owner = owner
        self._program = None
        self._made_for = None
        self._held = []
        self._captures = 0
        self.reason = "no weights were updated yet"

    def apply(self, optimizer, sums, weights, divisor):
        """Updates the weights by the optimizer, with its own numbers.

        Args:
            sums: of the gradients, by weight; None where there is none.
            divisor: what they are divided by first.
        """
        if not optimizer.built:
            with backend.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(weights)
            optimizer.built = True
        is_given = [each is not None for each in sums]
        inputs = [each.reshape(-1) for each in sums if each is not None]
        made_for = is_given, divisor, _constants_of(optimizer, weights)
        if made_for != self._made_for or (self._program is not None and not self._program.fits()):
            self._made_for = made_for
            self._held = [*_parts_of(optimizer, weights), *weights]  # so that no other object gets their ids
            self._compile(optimizer, weights, is_given, divisor, inputs)
        if self._program is None:
            optimizer.apply(mean_of(sums, divisor), weights)
        else:
            self._program.run(inputs)

    def _compile(self, optimizer, weights, is_given, divisor, inputs):
        self._program, self.reason = None, _host_reason(optimizer, weights)
        if self.reason is None and not inputs:
            self.reason = "there are no gradients"
        if self.reason is None and self._captures == _MOST_CAPTURES:
            self.reason = f"its attributes have changed {_MOST_CAPTURES} times"
        if self.reason is None:
            self._captures += 1
            try:
                self._program = _Program(optimizer, weights, is_given, divisor, self._owner, inputs)
            except Error as error:
                self.reason = f"its update cannot be captured: {str(error).splitlines()[0]}"
            else:
                if not self._program.is_shared:
                    self._program, self.reason = None, "devices cannot work in the memory of all its variables"
        if self.reason is not None:
            logger.info("%s updates the weights on the host: %s", type(optimizer).__name__, self.reason)
