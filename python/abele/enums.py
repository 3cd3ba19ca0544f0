"""Enumerations of the public API, made of the table of options, which the native module holds.

Values are part of the contract: saved options and toDict() hold them. Editors and type checkers read the stubs in
enums.pyi. Source: spec options.md, section 10.
"""

import enum

from ._native import core


def _enumeration(name, documentation, members):
    kind = enum.IntEnum if isinstance(members[0][1], int) else enum.Enum
    made = kind(name, members, module=__name__)
    made.__doc__ = documentation
    return made


globals().update({name: _enumeration(name, *rest) for name, *rest in core().optionEnums()})

__all__ = [name for name, value in list(vars().items()) if isinstance(value, type) and issubclass(value, enum.Enum)]
