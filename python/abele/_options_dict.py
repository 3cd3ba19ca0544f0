"""The safe dictionary behind every option object.

Source: spec options.md, section 1.
"""

import copy

from ._errors import refused
from ._native import core


class _Built(type):
    """Marks an object as built once its outermost __init__ has returned."""

    def __call__(cls, *args, **kwargs):
        self = super().__call__(*args, **kwargs)
        self.__dict__["_built"] = True
        return self


# Attributes of the machinery: never printed, never compared.
_MACHINERY = ("_values", "_built", "_is_frozen", "_error_context")


class OptionsDict(metaclass=_Built):
    """A fixed set of named, typed values that can be frozen.

    Values are read as attributes and written by set() or by assignment; a new value must be an instance of the type of
    the current one. Attributes that start with "_" must be declared while the object is constructed.
    """

    def __init__(self, **default_values):
        self.__dict__["_values"] = default_values
        self.__dict__["_is_frozen"] = False

    # Reading ---------------------------------------------------------------------------------------------------------
    def __getattr__(self, name):
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"{type(self).__name__} has no option {name!r}; {self._meant(name, values)}")

    def _meant(self, name, values, setters=True):
        """Which option was meant, or all that have a value."""
        known = [*values, *(self._setters() if setters else ())]
        otherwise = f"known: {', '.join(sorted(values))}"
        return otherwise if name.startswith("_") else core().didYouMean(name, known, otherwise)

    @classmethod
    def _setters(cls):
        """Names of what can be called or read besides values."""
        return [name for name in dir(cls) if not name.startswith("_")]

    def __call__(self, option):
        return getattr(self, option)

    def exists(self, name):
        """True if the option has a value."""
        return name in self._values

    # Writing ---------------------------------------------------------------------------------------------------------
    def __setattr__(self, name, value):
        if name.startswith("_"):
            if self.__dict__.get("_built", False):
                self.checkIsFrozen(name)
                if name not in self.__dict__:
                    raise refused(AttributeError, f"{type(self).__name__} has no attribute {name!r}")
            self.__dict__[name] = value
            return
        self.set(**{name: value})

    def set(self, **options):
        """Gives options that exist new values of the same type. Returns self."""
        for name, value in options.items():
            self.checkIsFrozen(name)
            if name not in self._values:
                raise refused(
                    AssertionError,
                    f"unknown option {name} of {type(self).__name__}; {self._meant(name, self._values, setters=False)}",
                )
            current = self._values[name]
            if not isinstance(value, type(current)):
                raise refused(
                    AssertionError,
                    f"option {name} of {type(self).__name__} is {value!r} "
                    f"({type(value).__name__}), expected {type(current).__name__}",
                )
            self._values[name] = value
        return self

    def createOrSet(self, **options):
        """As set(), but an option without a value is created. Returns self."""
        for name, value in options.items():
            if name in self._values:
                self.set(**{name: value})
            else:
                self.checkIsFrozen(name)
                self._values[name] = value
        return self

    def deleteIfExists(self, name):
        """Removes an option's value, if it has one."""
        self._values.pop(name, None)

    def update(self, other):
        """Adds the values to `other` and returns it; a key that is there already is an error."""
        common = self._values.keys() & other.keys()
        if common:
            raise refused(AssertionError, f"options set in two groups: {', '.join(sorted(common))}")
        other.update(self._values)
        return other

    def toDict(self):
        """A copy of the values."""
        return dict(self._values)

    # Freezing --------------------------------------------------------------------------------------------------------
    def checkIsFrozen(self, option=None):
        """Raises AttributeError if the object is frozen."""
        if self.__dict__.get("_is_frozen", False):
            raise refused(
                AttributeError,
                f"E0707 frozen: can't modify frozen {type(self).__name__}"
                f"{f' (option {option})' if option else ''}\n"
                "  try       set options before the model or the DataLoader is created, or clone() them",
            )

    def _setFrozen(self, frozen):
        self.__dict__["_is_frozen"] = frozen
        for value in self.__dict__.values():
            if hasattr(value, "_freeze"):
                (value._freeze if frozen else value._unfreeze)()

    def _freeze(self):
        self._setFrozen(True)

    def _unfreeze(self):
        self._setFrozen(False)

    # Copies ----------------------------------------------------------------------------------------------------------
    def __deepcopy__(self, memory):
        result = type(self).__new__(type(self))
        memory[id(self)] = result
        result.__dict__.update(copy.deepcopy(self.__dict__, memory))
        result._unfreeze()
        return result

    def __getstate__(self):
        return dict(self.__dict__)

    def __setstate__(self, state):
        self.__dict__.update(state)

    # Text ------------------------------------------------------------------------------------------------------------
    def _reprParts(self):
        parts = [f"{name}={value!r}" for name, value in self._values.items()]
        parts += [f"{name}={value!r}" for name, value in self.__dict__.items() if name not in _MACHINERY]
        return parts

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(self._reprParts())})"
