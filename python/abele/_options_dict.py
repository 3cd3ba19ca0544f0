"""The safe dictionary of every option object: a view of one group of the native values.

Source: spec options.md, section 1.
"""

import copy
import copyreg
import types
from typing import TYPE_CHECKING, Any, Self

from . import enums
from ._errors import refused
from ._native import core

# Key -> the enumeration whose members its values are shown as.
_MEMBERS = {key: getattr(enums, kind) for key, kind in core().optionKeys().items() if kind in enums.__all__}


def restored(state):
    """Native values from their state, which pickles hold and which consists of plain containers only."""
    return core().optionValuesOf(state)


copyreg.pickle(core().OptionValues, lambda values: (restored, (values.state(),)))


def add_values(all_values, values):
    """Adds the values to all and returns all. A key that is there already is an error."""
    common = values.keys() & all_values.keys()
    if common:
        raise refused(AssertionError, f"options set in two groups: {', '.join(sorted(common))}")
    all_values.update(values)
    return all_values


class _Built(type):
    """Marks an object as built after its outermost __init__ has returned."""

    def __call__(cls, *args, **kwargs):
        self = super().__call__(*args, **kwargs)
        self.__dict__["_built"] = True
        return self


# Internal attributes, which are never printed.
_MACHINERY = ("_native", "_values", "_built")


class OptionsDict(metaclass=_Built):
    """A fixed set of named, typed values that can be frozen.

    Values are read as attributes and written by set() or by assignment. A new value must be an instance of the present
    value's type. Reading a list or dict returns a copy. Attributes that start with "_" must be declared while the
    object is constructed.

    Args:
        values: native values that objects of several groups share; None: a new set of values.
    """

    _group = "Options"

    def __init__(self, values: Any = None) -> None:
        self.__dict__["_native"] = core().OptionValues() if values is None else values

    # Reading ---------------------------------------------------------------------------------------------------------
    def _find(self, name):
        """The value of an option, or None."""
        values = self.__dict__.get("_native")
        value = None if values is None else values.get(self._group, name)
        return _MEMBERS[name](value) if name in _MEMBERS and value is not None else value

    def _as_dict(self):
        """A copy of the values of this group."""
        return {
            name: _MEMBERS[name](value) if name in _MEMBERS else value
            for name, value in self._native.items(self._group)
        }

    if not TYPE_CHECKING:  # checkers find unknown names by the absence of these

        def __getattr__(self, name):
            value = self._find(name)
            if value is None:
                raise AttributeError(f"{type(self).__name__} has no option {name!r}; {self._meant(name)}")
            return value

        def __setattr__(self, name, value):
            if name.startswith("_"):
                if self.__dict__.get("_built", False):
                    self.checkIsFrozen(name)
                    if name not in self.__dict__:
                        raise refused(AttributeError, f"{type(self).__name__} has no attribute {name!r}")
                self.__dict__[name] = value
                return
            self.set(**{name: value})

    def _meant(self, name, setters=True):
        """A text that names the option that was probably meant, or all options that have a value."""
        names = sorted(self._as_dict()) if "_native" in self.__dict__ else []
        otherwise = f"known: {', '.join(names)}"
        if name.startswith("_"):
            return otherwise
        return core().didYouMean(name, [*names, *(self._setters() if setters else ())], otherwise)

    @classmethod
    def _setters(cls):
        """Names of methods and properties, apart from values."""
        return [name for name in dir(cls) if not name.startswith("_")]

    def __call__(self, option: str) -> Any:
        return getattr(self, option)

    def exists(self, name: str) -> bool:
        """True if the option has a value."""
        return self._find(name) is not None

    # Writing ---------------------------------------------------------------------------------------------------------
    def set(self, **options: Any) -> Self:
        """Gives existing options new values of the same type. Returns self."""
        for name, value in options.items():
            self.checkIsFrozen(name)
            current = self._find(name)
            if current is None:
                raise refused(
                    AssertionError,
                    f"unknown option {name} of {type(self).__name__}; {self._meant(name, setters=False)}",
                )
            if not isinstance(value, type(current)):
                raise refused(
                    AssertionError,
                    f"option {name} of {type(self).__name__} is {value!r} "
                    f"({type(value).__name__}), expected {type(current).__name__}",
                )
            self._native.assign(self._group, name, value)
        return self

    def createOrSet(self, **options: Any) -> Self:
        """As set(), but an option without a value is created. Returns self."""
        for name, value in options.items():
            if self.exists(name):
                self.set(**{name: value})
            else:
                self.checkIsFrozen(name)
                self._native.assign(self._group, name, value)
        return self

    def deleteIfExists(self, name: str) -> None:
        """Removes an option's value, if it has one."""
        if self.exists(name):
            self._native.erase(name)

    def update(self, other: dict[str, Any]) -> dict[str, Any]:
        """Adds the values to `other` and returns it. A key that `other` has already is an error."""
        return add_values(other, self._as_dict())

    @property
    def _values(self):
        """The options that have a value, by name. Libraries read this of PopTorch's options."""
        return types.MappingProxyType(self._as_dict())

    def toDict(self) -> dict[str, Any]:
        """A copy of the values."""
        return self._as_dict()

    # Freezing --------------------------------------------------------------------------------------------------------
    def checkIsFrozen(self, option: str | None = None) -> None:
        """Raises AttributeError if the object is frozen."""
        if self._native.frozen:
            raise refused(
                AttributeError,
                f"E0707 frozen: can't modify frozen {type(self).__name__}"
                f"{f' (option {option})' if option else ''}\n"
                "  try       set options before the model or the DataLoader is created, or clone() them",
            )

    def _freeze(self):
        self._native.frozen = True

    def _unfreeze(self):
        self._native.frozen = False

    # Copies ----------------------------------------------------------------------------------------------------------
    def __deepcopy__(self, memory):
        """A copy that is not frozen."""
        result = type(self).__new__(type(self))
        memory[id(self)] = result
        result.__dict__.update(copy.deepcopy(self.__dict__, memory))
        return result

    # Text ------------------------------------------------------------------------------------------------------------
    def __repr__(self):
        others = {name: value for name, value in self.__dict__.items() if name not in _MACHINERY}
        parts = [f"{name}={value!r}" for name, value in {**self._as_dict(), **others}.items()]
        return f"{type(self).__name__}({', '.join(parts)})"
