"""Refuses numbers that an option cannot have, by the table that C++ has too (src/options/options.json)."""

from ._errors import userError
from ._option_ranges_generated import RANGES


def _expected(limits):
    least, most, multiple, allowed = limits
    if allowed is not None:
        return "one of " + ", ".join(map(str, allowed))
    text = f"{least} or more" if most is None else f"{least} to {most}"
    return text if multiple is None else f"{text}, a multiple of {multiple}"


def isInRange(setter, argument, value):
    """False for a whole number that the setter does not take. Types are not looked at."""
    least, most, multiple, allowed = RANGES[setter][argument]
    return not isinstance(value, int) or (
        (least is None or value >= least)
        and (most is None or value <= most)
        and (multiple is None or value % multiple == 0)
        and (allowed is None or value in allowed)
    )


def expectedOf(setter, argument):
    """What isInRange asks for, in words."""
    return _expected(RANGES[setter][argument])


def requireInRange(setter, **arguments):
    """Raises E0702 for a whole number that the setter does not take."""
    for name, value in arguments.items():
        if not isInRange(setter, name, value):
            expected = expectedOf(setter, name)
            raise userError(
                "E0702",
                "option-value",
                f"{setter}: {name} is {value!r}",
                found=repr(value),
                expected=expected,
                remedy=f"pass {expected}",
            )
