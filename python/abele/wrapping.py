"""Wraps the class of a model in training, so that reading its weights first brings them back from the device.

While a model is wrapped, its class is a subclass `Poptorch<Name>`, and its parameters and buffers are of wrapper
classes. All of them hold only a weak reference to the executor. Source: spec executor.md, section 1.2.
"""

import contextlib
import copyreg
import functools
import sys
import threading
import weakref

import torch

from ._errors import createPoptorchError, refused, user_error
from ._logging import logger
from ._native import core

_LINK = "_abele_link"  # key in the __dict__ of a wrapped module or tensor
_READS = ("forward", "_parameters", "_buffers")
_thread = threading.local()  # suspended: the number of without_pull() contexts around this thread's code


@contextlib.contextmanager
def without_pull():
    """Inside, this thread reads wrapped tensors without bringing weights back from the device."""
    _thread.suspended = is_suspended() + 1
    try:
        yield
    finally:
        _thread.suspended -= 1


def is_suspended():
    """True if this thread is inside of without_pull()."""
    return getattr(_thread, "suspended", 0)


class _Link:
    """Links a wrapped object to its executors, and to its original class. A tensor of submodules that several models
    train has several executors."""

    def __init__(self, executor, original_class):
        self._executors = [weakref.ref(executor)]
        self.original_class = original_class

    def executors(self):
        """The live executors, in order."""
        return [executor for executor in (reference() for reference in self._executors) if executor is not None]

    def executor(self):
        """The first live executor, or None."""
        return next(iter(self.executors()), None)

    def add(self, executor):
        """Adds an executor."""
        if executor not in self.executors():
            self._executors.append(weakref.ref(executor))

    def remove(self, executor):
        """Removes an executor. Returns: whether no executor is left."""
        self._executors = [weakref.ref(other) for other in self.executors() if other is not executor]
        return not self._executors

    def pull(self):
        """Refreshes the host's weights if a device has newer ones."""
        if not is_suspended():
            for executor in self.executors():
                executor.copyWeightsToHostIfNeeded()

    def warn_of_clipping(self, gradient):
        """Warns if torch's functions that clip gradients read a gradient, because gradients are on the device."""
        executor = self.executor()
        reader = sys._getframe(2).f_globals.get("__name__")
        if gradient is None and executor is not None and reader == "torch.nn.utils.clip_grad":
            executor._native.warnOnce(
                "clip_grad_norm_ and clip_grad_value_ find no gradients: they are on the device, which has used them "
                "by then; give the optimizer max_grad_norm (poptorch.optim.SGD, Adam, AdamW) instead"
            )


def _link_of(thing):
    return thing.__dict__.get(_LINK)


def is_wrapped(tensor):
    """Whether a tensor is a parameter or buffer of a model that is wrapped for training."""
    return isinstance(tensor, _WrappedTensor)


def are_wrappers(kinds):
    """Whether all of these classes are those of wrapped parameters and buffers."""
    return all(kind is PoptorchParameter or kind is PoptorchBuffer for kind in kinds)


def has_meta_tensors(module):
    """Whether some parameters or buffers are on the meta device, without memory in this process."""
    with without_pull():
        return any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()])


def executor_of(thing):
    """The live executor that a wrapped module or tensor belongs to, or None."""
    link = _link_of(thing)
    return None if link is None else link.executor()


def _pull_arguments(values):
    for value in values:
        if isinstance(value, _WrappedTensor):
            _link_of(value).pull()
        elif isinstance(value, (list, tuple)):
            _pull_arguments(value)


class _WrappedTensor:
    """The common part of wrapped parameters and buffers."""

    def __getattribute__(self, name):
        if not name.startswith("__") and not is_suspended():
            link = object.__getattribute__(self, "__dict__").get(_LINK)
            if link is not None:
                link.pull()
                if name == "grad":
                    link.warn_of_clipping(super().__getattribute__(name))
        return super().__getattribute__(name)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not is_suspended():
            _pull_arguments(args)
            _pull_arguments((kwargs or {}).values())
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def replicaGrouping(self, comm_group_type, shards, variable_retrieval_mode):
        """Gives each group of replicas its own value: see _replica_grouping.ParameterProxy."""
        executor = executor_of(self)
        if executor is None:
            raise createPoptorchError("replicaGrouping: the model is no longer wrapped for training")
        executor._group_parameter(self, comm_group_type, shards, variable_retrieval_mode)

    def __repr__(self):
        return super().__repr__() if is_suspended() else repr(unwrapped(self))

    def __format__(self, format_spec):
        return format(unwrapped(self), format_spec)

    def __deepcopy__(self, memo):
        plain = unwrapped(self)
        result = plain.__deepcopy__(memo)
        memo[id(self)] = result
        memo.setdefault(id(memo), []).append(plain)  # as deepcopy does: keeps it alive, so that its id is not reused
        return result

    def __reduce_ex__(self, protocol):
        return unwrapped(self).__reduce_ex__(protocol)


class PoptorchParameter(_WrappedTensor, torch.nn.Parameter):
    """A parameter of a model that is wrapped for training."""


class PoptorchBuffer(_WrappedTensor, torch.Tensor):
    """A buffer of a model that is wrapped for training."""


def unwrapped(tensor):
    """A tensor of the original class with the memory of a wrapped one. Other tensors are returned unchanged."""
    if not isinstance(tensor, _WrappedTensor):
        return tensor
    _link_of(tensor).pull()
    with without_pull(), torch._C.DisableTorchFunctionSubclass():
        data = torch.Tensor.detach(tensor)
        result = torch.nn.Parameter(data, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else data
    result.__dict__.update({name: value for name, value in tensor.__dict__.items() if name != _LINK})
    return result


class _WrappedModule:
    """Methods of every `Poptorch<Name>` class."""

    def __init_subclass__(cls):
        """Hides the hook of the program's class, because a wrapper class is not one of the program's classes."""

    def __getattribute__(self, name):
        if name in _READS:
            link = object.__getattribute__(self, "__dict__").get(_LINK)
            if link is not None:
                link.pull()
        return super().__getattribute__(name)

    def __getattr__(self, name):
        value = super().__getattr__(name)
        if isinstance(value, _WrappedTensor):
            _link_of(value).pull()
        return value

    def destroy(self):
        """Releases the compiled program and gives the model its original class back."""
        executor = executor_of(self)
        if executor is not None:
            executor.destroy()

    def copyWeightsToHostIfNeeded(self):
        """Brings weights back from the device if they are newer. Returns: True if it copied."""
        executor = executor_of(self)
        return executor is not None and executor.copyWeightsToHostIfNeeded()

    def state_dict(self, *args, **kwargs):
        """The state dict with tensors of their original classes.

        If several processes hold the stages, all call it and each gets all tensors.
        """
        _link_of(self).pull()
        self._require_complete("state_dict()")
        state = super().state_dict(*args, **kwargs)
        copies = {}
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                state[name] = copies.setdefault(id(value), unwrapped(value))
        return state

    def _require_complete(self, what):
        executor = executor_of(self)
        if executor is not None:
            executor._require_complete(what)

    def __copy__(self):
        result = type(self).__new__(type(self))
        result.__dict__.update(self.__dict__)
        return result

    def _plain_state(self):
        _link_of(self).pull()
        state = dict(super().__getstate__())
        state.pop(_LINK, None)
        return state

    def __deepcopy__(self, memo):
        import copy

        original = _link_of(self).original_class
        result = original.__new__(original)
        memo[id(self)] = result
        result.__setstate__(copy.deepcopy(self._plain_state(), memo))
        return result

    def __reduce_ex__(self, protocol):
        self._require_complete("a pickle")
        # Refers only to the standard library, so that the file loads without this package.
        return copyreg._reconstructor, (_link_of(self).original_class, object, None), self._plain_state()


@functools.cache
def _wrapper_class(cls):
    """`Poptorch<Name>`, made once per class."""
    return type(f"Poptorch{cls.__name__}", (_WrappedModule, cls), {"__module__": cls.__module__})


def user_class(model):
    """The class of the user's module without a wrapper."""
    cls = type(model)
    return cls.__bases__[1] if issubclass(cls, _WrappedModule) else cls


def trainer_of(model):
    """The live executor that trains the model and was not destroyed. None: the model can be wrapped."""
    executor = executor_of(model) if isinstance(model, _WrappedModule) else None
    return executor if executor is not None and executor._has_model else None


def release(model):
    """Restores the class of a model whose executor is gone, or was destroyed before it compiled anything."""
    if trainer_of(model) is not None:
        raise refused(
            RuntimeError,
            "E0709 already-wrapped: the model belongs to another executor of poptorch.trainingModel\n"
            "  try       model.destroy() first",
        )
    unwrap_model(model)


def claim(model, executor):
    """Wraps the model for training by this executor, unless it is wrapped already."""
    if trainer_of(model) is executor:
        return
    release(model)
    executor._has_model = True
    wrap_model(model, executor)


def wrap_tensors(model, executor):
    """Gives wrapper classes to the parameters and buffers that lack them."""
    for tensors, original, wrapper in (
        (model.parameters(), torch.nn.Parameter, PoptorchParameter),
        (model.buffers(), torch.Tensor, PoptorchBuffer),
    ):
        for tensor in tensors:
            if type(tensor) is original:
                tensor.__dict__[_LINK] = _Link(executor, original)
                tensor.__class__ = wrapper
            elif type(tensor) is wrapper and executor._policy.shares_weights:
                _link_of(tensor).add(executor)


def _warn_of_sharing(model, executor):
    """Warns if a live training executor already trains some of the model's parameters."""
    with without_pull():
        for name, tensor in model.named_parameters():
            other = executor_of(tensor) if isinstance(tensor, _WrappedTensor) else None
            if other is not None and other is not executor:
                logger.warning(
                    "%s is trained by another executor that is still alive: each has weights of its own on its "
                    "devices, and reading them gives those of the first; destroy() that one before this one trains, or "
                    "train both in one model",
                    name,
                )
                return


def wrap_model(model, executor):
    """Gives the module, its parameters and its buffers their wrapper classes."""
    core().noteWrapping()
    for name, buffer in model.named_buffers():
        if type(buffer) not in (torch.Tensor, PoptorchBuffer):
            raise user_error(
                "E0105",
                f"buffer {name} is a {type(buffer).__name__}",
                expected="a torch.Tensor",
                remedy="register a plain tensor as buffer",
            )
    if not executor._policy.shares_weights:
        _warn_of_sharing(model, executor)
    wrap_tensors(model, executor)
    cls = type(model)
    model.__class__ = _wrapper_class(cls)
    model.__dict__[_LINK] = _Link(executor, cls)


def unwrap_model(model):
    """The inverse of wrap_model, for the objects that this module's executor wrapped."""
    if not isinstance(model, _WrappedModule):
        return
    core().noteWrapping()
    link = model.__dict__.pop(_LINK)
    model.__class__ = link.original_class
    with without_pull():
        for tensor in [*model.parameters(), *model.buffers()]:
            own = _link_of(tensor)
            if own is not None and own.remove(link.executor()):
                tensor.__class__ = own.original_class
                del tensor.__dict__[_LINK]


def training_executors(model):
    """The live training executors that parameters or buffers of this model belong to, in order."""
    found = {}
    with without_pull():
        for tensor in [*model.parameters(), *model.buffers()]:
            if isinstance(tensor, _WrappedTensor):
                for executor in _link_of(tensor).executors():
                    found[id(executor)] = executor
    return list(found.values())


class _Asks:
    """Runs before the state_dict() or the pickling of a module that is torch's own, such as a part of a wrapped one:
    refuses it on the meta device, where the tensors of other processes are missing."""

    def __init__(self, executor):
        self._executor = weakref.ref(executor)

    def _require(self, what):
        executor = self._executor()
        if executor is not None:
            executor._require_complete(what)

    def __call__(self, module, prefix, keep_vars):
        self._require("state_dict()")

    def __deepcopy__(self, memo):
        return self

    def __reduce_ex__(self, protocol):
        self._require("a pickle")
        # A hook of the standard library that does nothing, so that the file loads without this package.
        return functools.partial, (slice,)


def guard_state(module, executor):
    """From now on the module and its submodules refuse, as the executor does, while the executor lives. Ignores modules
    whose tensors all have memory. Returns: a function that ends it."""
    if not has_meta_tensors(module):
        return lambda: None
    handles = [each.register_state_dict_pre_hook(_Asks(executor)) for each in module.modules()]

    def release():
        for handle in handles:
            handle.remove()

    weakref.finalize(executor, release)
    return release
