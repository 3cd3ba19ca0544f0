"""The native optimizer for a Python optimizer. src/optimizer/optimizer_attributes.h interprets its attributes.

Source: spec optim.md, sections 1, 2, 3 and 5.
"""

import collections
import functools
import weakref

import torch

from . import optim
from ._errors import refused
from ._logging import logger
from ._native import core


@functools.cache
def optimizer_rows():
    """Name -> row of src/base/optimizers.def."""
    return {row.name: row for row in core().allOptimizers()}


@functools.cache
def _supported():
    rows = optimizer_rows().values()
    of_torch = [getattr(torch.optim, row.name) for row in rows if row.is_of_torch]
    return (*of_torch, *(getattr(optim, row.name) for row in rows))


def _implementation_of(optimizer):
    """The class that the device implements, or None."""
    return next((base for base in type(optimizer).__mro__ if base in _supported()), None)


def warn_of_subclass(optimizer):
    """Warns that methods which a subclass overrides do not run. Called once per optimizer."""
    known = _implementation_of(optimizer)
    if type(optimizer) is not known:
        logger.warning(
            "%s overrides %s; the device runs its own implementation, so overridden methods have no effect",
            type(optimizer).__name__,
            known.__name__,
        )


def warn_of_step_hooks(optimizer):
    """Warns that functions around an optimizer's step() do not run. Called once per optimizer."""
    found = [name for name in ("pre", "post") if getattr(optimizer, f"_optimizer_step_{name}_hooks", None)]
    if found:
        logger.warning(
            "functions given to register_step_%s_hook of %s are never called: the device updates the weights; "
            "call them before or after the model instead",
            found[0],
            type(optimizer).__name__,
        )


def is_foreign(optimizer):
    """True if the device does not implement it."""
    cls, known = type(optimizer), _implementation_of(optimizer)
    return known is None or (
        cls is not known and (torch.optim.Optimizer in cls.__bases__ or optim.Optimizer in cls.__bases__)
    )


def kind_of(optimizer):
    """The name of its row, such as "SGD".

    Raises:
        AssertionError: not an optimizer that the device implements.
    """
    cls, known = type(optimizer), _implementation_of(optimizer)
    if is_foreign(optimizer):
        *of_torch, last = (name for name, row in optimizer_rows().items() if row.is_of_torch)
        ours = "".join(f"poptorch.optim.{name}, " for name, row in optimizer_rows().items() if not row.is_of_torch)
        raise refused(
            AssertionError,
            f"E0706 optimizer: unsupported optimizer {cls.__module__}.{cls.__name__}\n"
            f"  expected  {', '.join(of_torch)} or {last} of torch.optim or poptorch.optim, {ours}or a subclass",
        )
    name = known.__name__
    if name == "Adam" and optimizer.defaults.get("decoupled_weight_decay"):
        return "AdamW"
    return name


# Fields for internal use by optimizers and schedulers of torch and of this package.
_OWN_FIELDS = frozenset(
    ("defaults", "state", "param_groups", "variable_attrs", "params")
    + ("ipu_state_is_dirty", "host_state_is_dirty", "differentiable", "step")
    + ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")
)


class AttributeWatch:
    """Warns about attributes that an optimizer did not have at its first use, because the device ignores them."""

    def __init__(self, optimizer, *, relaxed):
        self._known = self._names_of(optimizer)
        self._say = logger.debug if relaxed else logger.warning

    @staticmethod
    def _names_of(optimizer):
        places = {"attribute": optimizer.__dict__, "default": optimizer.defaults}
        places.update({f"param_groups[{i}] key": group for i, group in enumerate(optimizer.param_groups)})
        return {
            (place, name)
            for place, names in places.items()
            for name in names
            if name not in _OWN_FIELDS and not name.startswith("_")
        }

    def check(self, optimizer):
        """Warns once about each new name."""
        for place, name in sorted(self._names_of(optimizer) - self._known):
            self._known.add((place, name))
            self._say("ignoring unexpected optimizer %s %r", place, name)


def needs_running_mean(optimizer):
    """Whether the mean must be computed while gradients are summed, because float16 sums would overflow."""
    return getattr(optimizer, "accum_type", None) == torch.float16 and not getattr(
        optimizer, "use_combined_accum", False
    )


def without_state(optimizer):
    """A copy that shares groups and parameters, without the devices' state."""
    bare = type(optimizer).__new__(type(optimizer))
    bare.__dict__.update(optimizer.__dict__)
    bare.state = collections.defaultdict(dict)
    if isinstance(optimizer, optim.Optimizer):
        bare._device_state = {"ipu_state": None, "ipu_param": None}
        bare._executor = None
        bare.ipu_state_is_dirty = bare.host_state_is_dirty = False
    return bare


def ask_before_state_dict(optimizer, executor):
    """Makes state_dict() of a torch.optim optimizer return the device's state, or raise if the executor refuses."""
    held = weakref.ref(executor)

    def ask(asked):
        owner = held()
        if owner is not None and owner._optimizer is asked:
            owner._require_whole_state("state_dict() of the optimizer")
            owner._pull_optimizer_state()

    optimizer.register_state_dict_pre_hook(ask)


def _warn_of_tensors(optimizer):
    for index, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params" and any(isinstance(one, torch.Tensor) for one in (value, *_items_of(value))):
                logger.warning(
                    "%s of param_groups[%d] is a tensor: the device computes with the number in double precision, "
                    "where eager rounds as the tensor's type does; give the optimizer numbers",
                    name,
                    index,
                )


def _items_of(value):
    return value if isinstance(value, tuple | list) else ()


def native_of(optimizer, policy):
    """The native Optimizer that reads this one. It keeps no reference to the Python optimizer.

    Raises:
        AssertionError: an optimizer that the device does not implement, a value that is not a number, or groups of
            RMSprop with different values of centered.
        ValueError: amsgrad, or an element type that no state can have.
    """
    kind = kind_of(optimizer)
    _warn_of_tensors(optimizer)
    native = core().Optimizer(
        optimizer,
        kind=getattr(core().OptimizerKind, kind),
        is_ours=isinstance(optimizer, optim.Optimizer),
        policy=policy,
    )
    native.requireValues()
    if kind == "RMSprop":
        optim.require_one_centered(optimizer)
    return native
