"""Options from text: configuration files and JSON.

Source: spec options.md, sections 7 and 8.
"""

import json
import os

from . import enums
from ._errors import ConfigFileError, userError


def applyFile(options, filepath):
    """Applies every line of the file, or none if one does not parse."""
    import poptorch

    name = os.path.basename(filepath)
    with open(filepath, encoding="utf-8") as file:
        lines = [line.strip() for line in file]
    statements = []
    for number, line in enumerate((line for line in lines if line and not line.startswith("#")), start=1):
        source = "options." + line
        try:
            statements.append(compile(source, name, "exec"))
        except SyntaxError as error:
            raise ConfigFileError(
                f"{type(error).__name__} at line {number} of {name}: {error.msg}\n> {source}"
            ) from None
    scope = {"options": options, "poptorch": poptorch}
    for statement in statements:
        exec(statement, scope)  # the file is the user's own program


def _argument(value):
    """A JSON value, with "EnumName.Member" turned into that member."""
    if isinstance(value, str) and value.count(".") == 1:
        cls, member = value.split(".")
        if cls in enums.__all__ and member in getattr(enums, cls).__members__:
            return getattr(enums, cls)[member]
    return value


def applyJson(options, string):
    """Calls every setter that the JSON object names."""
    table = json.loads(string)
    if not isinstance(table, dict):
        raise userError(
            "E0702",
            "option-value",
            f"the JSON text is a {type(table).__name__}",
            expected='{"dotted.setter": arguments}',
        )
    for accessor, value in table.items():
        setter = options
        for part in accessor.split("."):
            setter = getattr(setter, part)
        if not callable(setter):
            raise userError(
                "E0701",
                "unknown-option",
                f"{accessor} is a value",
                expected="a setter",
                remedy='name the method: {"deviceIterations": 4}',
            )
        values = value if isinstance(value, list) else [value]
        setter(*(_argument(item) for item in values))
