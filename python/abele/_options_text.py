"""Options from text: configuration files and JSON.

Source: spec options.md, sections 7 and 8.
"""

import io
import json
import os

from . import _options_statements, enums
from ._errors import ConfigFileError, userError
from ._whole_files import readText


def applyFile(options, filepath):
    """Applies every line of the file, or none if one does not parse or is more than options are made of."""
    name = os.path.basename(os.fsdecode(filepath))
    lines = [line.strip() for line in io.StringIO(readText(filepath), newline=None)]
    statements = []
    for number, line in enumerate((line for line in lines if line and not line.startswith("#")), start=1):
        source = "options." + line
        try:
            statements.extend(_options_statements.parse(source, name))
        except (SyntaxError, ValueError, RecursionError, MemoryError, _options_statements.Refused) as error:
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise ConfigFileError(f"SyntaxError at line {number} of {name}: {what}\n> {source}") from None
    for statement in statements:
        _options_statements.run(statement, options)


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
            if not _options_statements.isPublic(part):
                raise userError("E0701", "unknown-option", f"{accessor}: {part} is no option")
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
