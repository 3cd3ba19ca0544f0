"""Parameters with a separate value for each group of replicas.

Source: spec executor.md, section 9.
"""

from torch.utils._pytree import tree_map_only

from . import enums, wrapping
from ._errors import createPoptorchError, refused, user_error
from ._native import core


class Groupings:
    """The groupings of one executor, by the parameter's name, in C++'s form."""

    def __init__(self):
        self._by_name = {}

    def add(self, executor, name, comm_group_type, shards, variable_retrieval_mode):
        """See ParameterProxy.replicaGrouping. name: a parameter of the top module."""
        if not isinstance(comm_group_type, enums.CommGroupType):
            raise refused(AssertionError, f"expected a CommGroupType, got {comm_group_type!r}")
        if not isinstance(shards, int):
            raise refused(AssertionError, f"expected the number of replicas in a group, got {shards!r}")
        if not isinstance(variable_retrieval_mode, enums.VariableRetrievalMode):
            raise refused(AssertionError, f"expected a VariableRetrievalMode, got {variable_retrieval_mode!r}")
        if executor.isCompiled():
            raise createPoptorchError(f"replicaGrouping of {name}: call it before the model is compiled")
        with wrapping.without_pull():
            if executor._model._parameters[name].dim() == 0:
                raise user_error(
                    "E0702",
                    f"replicaGrouping of the scalar parameter {name}",
                    expected="a parameter whose first dimension counts the groups",
                )
        one_each = variable_retrieval_mode == enums.VariableRetrievalMode.AllReplicas
        self._by_name[name] = (name, getattr(core().CommGroup, comm_group_type.name), shards, one_each)

    def adopt(self, native):
        """Takes over the native() groupings of a saved program."""
        self._by_name = {grouping[0]: grouping for grouping in native}

    def native(self):
        """For ProgramOptions.setGroupings."""
        return list(self._by_name.values())


class ParameterProxy:
    """A parameter of an executor's model, as an attribute of the executor. It behaves like the parameter and adds
    replicaGrouping."""

    def __init__(self, executor, name, parameter):
        self.__dict__.update(_executor=executor, _name=name, _parameter=parameter)

    def replicaGrouping(self, comm_group_type, shards, variable_retrieval_mode):
        """Gives each group of replicas its own value of this parameter.

        Args:
            comm_group_type: CommGroupType; All: no effect.
            shards: replicas in a group; ignored for NoGrouping.
            variable_retrieval_mode: VariableRetrievalMode: whether the host's parameter has a value for every group or
                for every replica, along a first dimension that forward does not see.
        Raises:
            poptorch.Error: the parameter is a scalar, or the model is compiled.
        """
        self._executor._groupings.add(self._executor, self._name, comm_group_type, shards, variable_retrieval_mode)

    @property
    def __class__(self):
        return type(self._parameter)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        args, kwargs = _given((args, kwargs or {}))
        return function(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "_parameter"), name)  # which a copy has not yet

    def __setattr__(self, name, value):
        setattr(self._parameter, name, value)

    def __repr__(self):
        return repr(self._parameter)


def _given(arguments):
    """The arguments with parameters in the place of their proxies."""
    return tree_map_only(ParameterProxy, lambda proxy: proxy._parameter, arguments)


def _forward(name):
    def method(self, *args):
        return getattr(self._parameter, name)(*_given(args))

    method.__name__ = name
    setattr(ParameterProxy, name, method)


_OPERATORS = """
add sub mul truediv floordiv mod pow matmul and or xor radd rsub rmul rtruediv rpow rmatmul iadd isub imul itruediv
eq ne lt le gt ge neg abs invert len iter getitem setitem bool float int index hash contains array
"""
for _name in _OPERATORS.split():
    _forward(f"__{_name}__")
