"""Setters of the options: methods made of the table of options, which the native module holds.

Each checks and stores its arguments in C++. Editors and type checkers read the stubs in _option_setters.pyi.
"""

import inspect

from . import enums
from ._native import core

_SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _parameter(name, kind, has_default, default, takes_the_rest):
    if takes_the_rest:
        return inspect.Parameter(name, inspect.Parameter.VAR_POSITIONAL)
    if not has_default:
        default = inspect.Parameter.empty
    elif kind in enums.__all__:
        default = getattr(enums, kind)(default)
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def _setter(owner, path, name, parameters, returns_self, documentation):
    def setter(self, *args, **kwargs):
        self._native.call(path, *args, **kwargs)
        return self if returns_self else None

    setter.__name__, setter.__qualname__, setter.__doc__ = name, f"{owner}.{name}", documentation
    setter.__signature__ = inspect.Signature([_SELF, *(_parameter(*each) for each in parameters)])
    return setter


def _setters_of(group):
    owner = f"{group.strip('_')}Setters"
    rows = core().optionSetters(group)
    methods = {row[1]: _setter(owner, *row) for row in rows}
    return type(owner, (), {"__module__": __name__, "__doc__": f"The table's setters of {group}.", **methods})


OptionsSetters = _setters_of("Options")
TrainingSetters = _setters_of("Training")
PrecisionSetters = _setters_of("Precision")
JitSetters = _setters_of("Jit")
PopartSetters = _setters_of("_Popart")
DistributedSetters = _setters_of("Distributed")
TensorLocationsSetters = _setters_of("TensorLocations")
TensorLocationSettingsSetters = _setters_of("TensorLocationSettings")
