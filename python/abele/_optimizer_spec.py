"""From a Python optimizer to what the device needs: rules fixed at compile time and values that may change.

Source: spec optim.md, sections 1, 2, 3 and 5.
"""

import functools
import math
import numbers

import torch

from . import optim
from ._errors import refused, userError
from ._logging import logger
from ._native import core

# Attributes of a group, and the value at which those of torch's own optimizers count as constant.
_NATIVE_CONSTANTS = {
    "weight_decay": 0.0,
    "momentum": 0.0,
    "dampening": 0.0,
    "eps": 1e-8,
    "max_weight_norm": 65500.0,
    "velocity_scaling": 1.0,
    "loss_scaling": 1.0,
}
_ALWAYS_CONSTANT = ("alpha", "betas", "nesterov")
# Attributes of a group that decide what is kept from step to step.
_KEEPING_ATTRIBUTES = {"Adam": ("amsgrad",), "AdamW": ("amsgrad",), "RMSprop": ("centered",)}
# Flags of the optimizer that are the same for all groups.
_WHOLE_FLAGS = ("use_tf_variant", "bias_correction")
# Numbers of a group that are no real numbers of their own: betas are a pair, nesterov is a flag.
_SPECIAL_NUMBERS = ("beta1", "beta2", "nesterov")
# Attributes of the optimizer that are the same for all groups and never change after compilation, and their values in
# optimizers that lack them.
_FIXED = {
    "use_combined_accum": False,
    "accum_type": torch.float32,
    "velocity_accum_type": torch.float32,
    "first_order_momentum_accum_type": torch.float32,
    "second_order_momentum_accum_type": torch.float32,
    "max_grad_norm": math.inf,
    "bias_correction": True,
    "use_tf_variant": False,
}


@functools.cache
def optimizerRows():
    """Name -> row of src/base/optimizers.def."""
    return {row.name: row for row in core().allOptimizers()}


@functools.cache
def _supported():
    rows = optimizerRows().values()
    of_torch = [getattr(torch.optim, row.name) for row in rows if row.is_of_torch]
    return (*of_torch, *(getattr(optim, row.name) for row in rows))


def _groupAttributes(kind):
    numbers = ("betas" if name == "beta1" else name for name in optimizerRows()[kind].numbers if name != "beta2")
    return (*numbers, *_KEEPING_ATTRIBUTES.get(kind, ()))


def _implementationOf(optimizer):
    """The class that the device implements; None if there is none."""
    return next((base for base in type(optimizer).__mro__ if base in _supported()), None)


def warnOfSubclass(optimizer):
    """To be called once for an optimizer: what a subclass overrides is not executed."""
    known = _implementationOf(optimizer)
    if type(optimizer) is not known:
        logger.warning(
            "%s overrides %s; the device runs its own implementation, so overridden methods have no effect",
            type(optimizer).__name__,
            known.__name__,
        )


def kindOf(optimizer):
    """The name of its row, such as "SGD".

    Raises:
        AssertionError: not an optimizer that the device implements.
    """
    cls, known = type(optimizer), _implementationOf(optimizer)
    foreign = known is None or (
        cls is not known and (torch.optim.Optimizer in cls.__bases__ or optim.Optimizer in cls.__bases__)
    )
    if foreign:
        *of_torch, last = (name for name, row in optimizerRows().items() if row.is_of_torch)
        ours = "".join(f"poptorch.optim.{name}, " for name, row in optimizerRows().items() if not row.is_of_torch)
        raise refused(
            AssertionError,
            f"E0706 optimizer: unsupported optimizer {cls.__module__}.{cls.__name__}\n"
            f"  expected  {', '.join(of_torch)} or {last} of torch.optim or poptorch.optim, {ours}or a subclass",
        )
    name = known.__name__
    if name == "Adam" and optimizer.defaults.get("decoupled_weight_decay"):
        return "AdamW"
    return name


def _isConstant(optimizer, kind, name, value):
    if name in ("amsgrad", "centered"):
        return True  # they decide what is kept from step to step
    if isinstance(optimizer, optim.Optimizer):
        return optimizer.variable_attrs.isConstant(name)
    if name in _ALWAYS_CONSTANT:
        return True
    if name == "weight_decay" and kind == "AdamW":
        return value == 0.01
    return name in _NATIVE_CONSTANTS and value == _NATIVE_CONSTANTS[name]


class Constants:
    """Which attributes of an optimizer are fixed at compile time, and their values."""

    def __init__(self, optimizer, *, scaling_varies=False):
        """scaling_varies: loss scaling is automatic, and its start may always change."""
        kind = kindOf(optimizer)
        self._found = {"type": kind, "number of groups": str(len(optimizer.param_groups))}
        self._found.update((name, f"{getattr(optimizer, name, value)}") for name, value in _FIXED.items())
        scale = _lossScaling(optimizer)
        if not scaling_varies:
            self._note("loss_scaling", scale, _isConstant(optimizer, kind, "loss_scaling", scale))
        names = _groupAttributes(kind)
        if getattr(optimizer, "use_combined_accum", False):
            names += ("velocity_scaling",)
        for index, group in enumerate(optimizer.param_groups):
            for name in names:
                value = group.get(name, optimizer.defaults.get(name))
                # A learning rate that was left at its default may change all the same: schedulers do that.
                constant = name != "lr" and _isConstant(optimizer, kind, name, value)
                constant |= isinstance(optimizer, optim.Optimizer) and name in optimizer.variable_attrs._marked
                self._note(f"param_groups[{index}][{name!r}]", value, constant)

    def _note(self, name, value, is_constant):
        value = float(value) if isinstance(value, int) else value
        self._found[name] = f"constant {value}" if is_constant else "variable"

    def requireSame(self, other):
        """Raises E0706 if a constant of the compiled program changes."""
        for name in {**self._found, **other._found}:
            ours, theirs = self._found.get(name, "absent"), other._found.get(name, "absent")
            if ours != theirs:
                marking = "mark it with optimizer.variable_attrs.markAsVariable before the model is compiled, or "
                raise userError(
                    "E0706",
                    "optimizer",
                    f"{name} of the optimizer is fixed in the compiled program",
                    found=theirs,
                    expected=ours,
                    remedy=f"{marking if 'constant' in ours else ''}call destroy() first",
                )


_BOOKKEEPING = frozenset(("defaults", "state", "param_groups", "variable_attrs", "params"))


class AttributeWatch:
    """Warns about attributes that an optimizer did not have at its first use: the device does not know them."""

    def __init__(self, optimizer, *, relaxed):
        self._known = self._namesOf(optimizer)
        self._say = logger.debug if relaxed else logger.warning

    @staticmethod
    def _namesOf(optimizer):
        places = {"attribute": optimizer.__dict__, "default": optimizer.defaults}
        places.update({f"param_groups[{i}] key": group for i, group in enumerate(optimizer.param_groups)})
        return {
            (place, name)
            for place, names in places.items()
            for name in names
            if name not in _BOOKKEEPING and not name.startswith("_")
        }

    def check(self, optimizer):
        """Says each new name once."""
        for place, name in sorted(self._namesOf(optimizer) - self._known):
            self._known.add((place, name))
            if name not in ("initial_lr", "step", *_OWN_FIELDS):
                self._say("ignoring unexpected optimizer %s %r", place, name)


# Fields that optimizers and schedulers of torch and of this package keep for themselves.
_OWN_FIELDS = ("ipu_state_is_dirty", "host_state_is_dirty", "differentiable")


def _number(name, value):
    if not isinstance(value, (numbers.Real, torch.Tensor)) or isinstance(value, bool):
        raise refused(AssertionError, f"E0706 optimizer: {name} of the optimizer is {value!r}\n  expected  a number")
    return float(value)


def _groupFields(kind, group, defaults, *, as_torch):
    """Fields of a group by name: numbers, and flags as 0 or 1."""
    get = lambda name: group.get(name, defaults.get(name))  # noqa: E731
    if get("amsgrad"):
        raise refused(
            ValueError, "E0706 optimizer: amsgrad=True is not supported\n  try       create the optimizer without it"
        )
    names = optimizerRows()[kind].numbers
    fields = {name: _number(name, get(name)) for name in names if name not in _SPECIAL_NUMBERS}
    if "beta1" in names:
        betas = get("betas")
        if not isinstance(betas, tuple) or len(betas) != 2:
            raise refused(AssertionError, f"E0706 optimizer: betas are {betas!r}\n  expected  a tuple of two numbers")
        fields["beta1"], fields["beta2"] = (_number("betas", beta) for beta in betas)
    flags = ("nesterov", "maximize", *_KEEPING_ATTRIBUTES.get(kind, ()), *(("fused",) if as_torch else ()))
    fields.update((name, float(bool(get(name)))) for name in flags)
    if as_torch:
        _requireCapable(get)
        if isinstance(lr := get("lr"), torch.Tensor):
            fields["rounds_rate"] = float(lr.dtype == torch.float32)
    return fields


def _requireCapable(get):
    """Raises E0706 for implementations of torch that the device has not.

    foreach gives the same bits as torch's plain implementation. PopTorch ignores all of them.
    """
    for name, why in (
        ("capturable", "torch has it for accelerators only"),
        ("differentiable", "the device does not differentiate its updates"),
    ):
        if get(name):
            raise userError(
                "E0706",
                "optimizer",
                f"{name}=True: {why}",
                remedy=f"create the optimizer without {name}, or use poptorch.trainingModel, which ignores it",
            )


def _stateTypes(optimizer, parameters=()):
    """Field -> element type of gradient sums and moments. Without one it is the parameter's, as in torch."""
    names = [name for name in _FIXED if name.endswith("accum_type")]
    if not isinstance(optimizer, optim.Optimizer):
        # Said all the same where both agree, so that either may replace the other.
        plain = all(tensor.dtype == torch.float32 for tensor in parameters if tensor.requires_grad)
        return {name: torch.float32 for name in names if name != "velocity_accum_type"} if plain else {}
    types = {name: getattr(optimizer, name) for name in names if hasattr(optimizer, name)}
    for name, dtype in types.items():
        if dtype not in (torch.float16, torch.float32):
            raise refused(ValueError, f"E0706 optimizer: {name} is {dtype}\n  expected  torch.float16 or torch.float32")
    types.setdefault("second_order_momentum_accum_type", torch.float32)
    return types


def needsRunningMean(optimizer):
    """Whether the gradient mean has to be taken while summing: float16 sums would overflow."""
    return getattr(optimizer, "accum_type", None) == torch.float16 and not getattr(
        optimizer, "use_combined_accum", False
    )


def _lossScaling(optimizer):
    return _number("loss_scaling", getattr(optimizer, "loss_scaling", 1.0))


def fieldsOf(optimizer, parameters=(), *, as_torch):
    """The native OptimizerFields of a supported optimizer: of its groups, and of its defaults behind them.

    Args:
        parameters: of the model, for the types of what is kept.
        as_torch: numbers are torch's, bit for bit, where PopTorch's rules are others.
    """
    kind = kindOf(optimizer)
    whole = {name: float(bool(getattr(optimizer, name))) for name in _WHOLE_FLAGS if hasattr(optimizer, name)}
    norm = getattr(optimizer, "max_grad_norm", None)
    may_vary = isinstance(optimizer, optim.Optimizer) and "momentum" in optimizerRows()[kind].numbers
    return core().OptimizerFields(
        kind=getattr(core().OptimizerKind, kind),
        groups=[
            {**_groupFields(kind, group, optimizer.defaults, as_torch=as_torch), **whole}
            for group in [*optimizer.param_groups, {}]
        ],
        loss_scaling=_lossScaling(optimizer),
        max_grad_norm=math.inf if norm is None else norm,
        types=_stateTypes(optimizer, parameters),
        use_combined_accum=bool(getattr(optimizer, "use_combined_accum", False)),
        momentum_varies=may_vary and not optimizer.variable_attrs.isConstant("momentum"),
        follows_torch=as_torch,
    )


def _memoryKey(tensor):
    """The same for tensors that are the same memory. Parameters may be parts of one storage."""
    if tensor.layout != torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape


def groupNames(optimizer, parameters, *, ordered=False):
    """Names of the model's parameters by group, and those of no group. Matched by memory.

    Args:
        ordered: a name for every tensor of a group, in their order, None for one that is no parameter; else those of
            trainable ones, each once.
    """
    names = {_memoryKey(tensor): name for name, tensor in parameters.items()}
    grouped, missing = [], dict.fromkeys(name for name, tensor in parameters.items() if tensor.requires_grad)
    for index, group in enumerate(optimizer.param_groups):
        found = []
        for position, tensor in enumerate(group["params"]):
            name = names.get(_memoryKey(tensor))
            if name is None and not ordered:
                raise userError(
                    "E0706",
                    "optimizer",
                    f"param_groups[{index}]['params'][{position}] is no parameter of the model",
                    found=f"a tensor of shape {list(tensor.shape)}",
                    remedy="build the optimizer from model.parameters() of the model that is wrapped",
                )
            if ordered:
                found.append(name)
            elif name in missing:
                found.append(name)
            missing.pop(name, None)
        grouped.append(found)
    return grouped, list(missing)


def toSpec(optimizer, parameters, *, as_torch):
    """The native OptimizerSpec.

    Args:
        optimizer: a supported optimizer.
        parameters: name -> parameter of the model.
        as_torch: numbers are torch's, and trainable parameters of no group stay as they are. Else PopTorch's rules
            hold, and those parameters are updated with the optimizer's defaults.
    """
    grouped, missing = groupNames(optimizer, parameters)
    if missing and not as_torch:
        logger.warning(
            "%d trainable parameters are in no group of the optimizer and are updated with its defaults: %s",
            len(missing),
            ", ".join(missing[:5]),
        )
        grouped.append(missing)
    return fieldsOf(optimizer, parameters.values(), as_torch=as_torch).spec(grouped)


def _requireAgreement(optimizer, kind):
    """Raises E0706 for a group that contradicts what is the same for all groups."""
    fixed = {name: getattr(optimizer, name) for name in _FIXED if hasattr(optimizer, name)}
    fixed["decoupled_weight_decay"] = kind == "AdamW"
    for index, group in enumerate(optimizer.param_groups):
        for name, value in fixed.items():
            if name in group and group[name] is not None and group[name] != value:
                raise userError(
                    "E0706",
                    "optimizer",
                    f"{name} is the same for all groups of an optimizer, and param_groups[{index}] differs",
                    found=f"{group[name]}",
                    expected=f"{value}",
                    remedy=f"leave {name} out of the group",
                )
    if kind == "RMSprop":
        optim.requireOneCentered(optimizer)


def requireValues(optimizer, *, as_torch):
    """What is wrong with the values of an optimizer is said when a model gets it.

    Raises:
        ValueError: amsgrad, or an element type that no state can have.
        AssertionError: a value that is no number, or groups of RMSprop that do not agree on centered.
    """
    kind = kindOf(optimizer)
    for group in optimizer.param_groups:
        _groupFields(kind, group, optimizer.defaults, as_torch=as_torch)
    _requireAgreement(optimizer, kind)
    _stateTypes(optimizer)


def changed(sent, now):
    """Which value the device does not have yet: "lr of param_groups[0]". None: it has all.

    Args:
        sent, now: fieldsOf() of the optimizer when the device got its values, and by now.
    """
    if now.hasSameNumbers(sent):
        return None
    if now.loss_scaling != sent.loss_scaling:
        return "loss_scaling"
    if now.kind != sent.kind or len(now.groups) != len(sent.groups):
        return "the number of parameter groups"
    for index in range(len(now.groups) - 1):
        ours, theirs = sent.numbers(index), now.numbers(index)
        names = [name for name in optimizerRows()[now.kind.name].numbers if ours.get(name) != theirs.get(name)]
        names += [name for name in theirs if ours.get(name) != theirs[name]]
        if names:
            return f"{names[0]} of param_groups[{index}]"
    return None  # a default, which holds for no group


@functools.cache
def _stateKeys():
    """State of the device -> key of ipu_state. Source: spec optim.md, section 6."""
    return {state.name: state.name_in_poptorch for row in optimizerRows().values() for state in row.states}


def _stateKey(native_name):
    kind, _, parameter = native_name.partition("/")
    return f"{_stateKeys().get(kind, kind)}___{parameter}" if parameter else kind


def readState(optimizer, native, parameters):
    """{"ipu_state", "ipu_param"} from the device's state and the optimizer's values."""
    kind = kindOf(optimizer)
    grouped, _ = groupNames(optimizer, parameters)
    scale = float(getattr(optimizer, "loss_scaling", 1.0))
    values = {"lossScaling_FLOAT": torch.tensor(scale)}
    fields = fieldsOf(optimizer, as_torch=False)
    for index, names in enumerate(grouped):
        hypers = fields.numbers(index)
        lr, decay = hypers["lr"], hypers["weight_decay"]
        for name in names:
            if kind == "SGD":
                scaled = lr * (1 - hypers["dampening"])
                values[f"scaledLearningRate0___specific___{name}"] = torch.tensor(scaled / scale)
                values[f"weightDecayScaleFactor0___specific___{name}"] = torch.tensor(1 - scaled * decay)
            else:
                values[f"learningRate___specific___{name}"] = torch.tensor(lr)
                values[f"weightDecay___specific___{name}"] = torch.tensor(decay)
    return {"ipu_state": {_stateKey(name): value for name, value in native.items()}, "ipu_param": values}


def nativeState(ipu_state, current):
    """The device's state with the entries of ipu_state; those that it lacks keep their value."""
    result = {}
    for name, value in current.items():
        given = ipu_state.get(_stateKey(name))
        if given is None:
            logger.warning("optimizer state %s is not in the loaded state and keeps its value", _stateKey(name))
        result[name] = value if given is None else given
    return result
