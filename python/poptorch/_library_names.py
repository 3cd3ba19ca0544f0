"""Names that are private in PopTorch, but that published libraries and tests read.

docs/guide/from_poptorch.md says which of them reads each name, and which test shows it. The modules of these names
beside this file only import them from here. `abele` keeps its own objects of such names: the binding of arguments, an
executor's options and program, the values of options.
"""

import inspect

import torch
from abele import options, strategies, structures, wrapping
from abele._arguments import Binding
from abele._errors import user_error
from abele.enums import CommGroupType, VariableRetrievalMode


# _args_parser --------------------------------------------------------------------------------------------------------
class ArgsParser(Binding):
    """Binds the arguments of a call to the signature of a model's forward, or to a subclass's description of it: names,
    their defaults (inspect.Parameter.empty: no default), and whether more arguments of any kind may follow."""

    def __init__(self, model):
        super().__init__(model.forward)
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        self._has_variadic_arguments = any(parameter.kind in variadic for parameter in self._parameters)
        self._varnames = [parameter.name for parameter in self._parameters]
        self._defaults = [parameter.default for parameter in self._parameters]
        self._warned_not_contiguous_input = False  # never read, because executors warn once by themselves

    def __getattr__(self, name):
        """Serves a subclass that never called __init__."""
        if name != "_parameters":
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        kinds, names = inspect.Parameter, zip(self._varnames, self._defaults, strict=True)
        self._parameters = [kinds(name, kinds.POSITIONAL_OR_KEYWORD, default=default) for name, default in names]
        if self._has_variadic_arguments:
            self._parameters += [kinds("args", kinds.VAR_POSITIONAL), kinds("kwargs", kinds.VAR_KEYWORD)]
        return self._parameters


# Attributes of executors ---------------------------------------------------------------------------------------------
class ExecutorNames:
    """Part of PoplarExecutor."""

    @property
    def _is_attached(self):
        return self.isAttachedToDevice()

    @property
    def per_replica_params(self):
        """Arguments of replicaGrouping() by the parameter's name."""
        modes = {True: VariableRetrievalMode.AllReplicas, False: VariableRetrievalMode.OnePerGroup}
        return {
            name: (CommGroupType[group.name], shards, modes[one_each])
            for name, group, shards, one_each in self._groupings.native()
        }


# _impl ---------------------------------------------------------------------------------------------------------------
def unwrapModelIfNecessary(model):
    """Gives a model wrapped for training its original class back, until rewrapModelIfNecessary."""
    executor = wrapping.executor_of(model)
    if executor is not None:
        executor.copyWeightsToHostIfNeeded()
        model.__dict__["_abele_unwrapped_from"] = wrapping.weakref.ref(executor)
        wrapping.unwrap_model(model)


def rewrapModelIfNecessary(model):
    """Undoes unwrapModelIfNecessary."""
    reference = model.__dict__.pop("_abele_unwrapped_from", None)
    executor = reference() if reference is not None else None
    if executor is not None:
        wrapping.wrap_model(model, executor)


# _utils --------------------------------------------------------------------------------------------------------------
def combine_batch_tensors_gen(tensors):
    """From lists with the tensors of one batch each, yields the tensors at the same position joined along dim 0."""
    for same_place in zip(*tensors, strict=True):
        yield torch.cat(same_place)


custom_arg_parsers = structures.PARSERS  # type -> registered parser
getCustomParser = structures.parser_for


def isOnIpu(tensor):
    """Whether it is a value of the program that is being captured."""
    return tensor.device.type == "ipu"


# options -------------------------------------------------------------------------------------------------------------
def publish():
    """Gives poptorch.options, which is Abele's module, the name _IExecutionStrategy."""
    options._IExecutionStrategy = strategies._Strategy


# _poplar_executor ----------------------------------------------------------------------------------------------------
def require_manager(manager):
    """Raises E0708 for an object that cannot be a substitution manager."""
    missing = [name for name in ("replace", "restore") if not callable(getattr(manager, name, None))]
    if missing or not isinstance(manager, type):
        raise user_error(
            "E0708",
            f"registerSubsitutionManager: {manager!r} is no substitution manager",
            expected="a class with the methods replace() and restore()",
        )
