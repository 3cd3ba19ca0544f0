"""Options from text: configuration files and JSON, which C++ reads and Python's objects apply.

Source: spec options.md, sections 7 and 8.
"""

import json
import os

from . import enums, strategies
from ._errors import userError
from ._native import core
from ._whole_files import readText


def _classes():
    """What the calls in a text name."""
    from .options import TensorLocationSettings  # it imports this module

    found = {name: getattr(home, name) for home in (enums, strategies) for name in home.__all__}
    return {**found, "TensorLocationSettings": TensorLocationSettings}


class _Target:
    """What a text is applied to: these options, whose class may have setters of its own."""

    def __init__(self, options):
        self._options = options
        self.classes = _classes()

    def _group(self, name):
        return self._options if name == "Options" else getattr(self._options, name)

    def read(self, group, key):
        return getattr(self._group(group), key)

    def assign(self, group, key, value):
        setattr(self._group(group), key, value)

    def call(self, path, arguments, named):
        setter = self._options
        for part in path.split("."):
            if part.startswith("_") and part != "_Popart":
                raise userError("E0701", f"{path}: {part} is no option")
            setter = getattr(setter, part)
        if not callable(setter):
            raise userError(
                "E0701", f"{path} is a value", expected="a setter", remedy='name the method: {"deviceIterations": 4}'
            )
        setter(*arguments, **named)


def applyFile(options, filepath):
    """Applies every line of the file, or none if one does not parse or is more than options are made of."""
    core().applyConfig(readText(filepath), os.path.basename(os.fsdecode(filepath)), _Target(options))


def applyJson(options, string):
    """Calls every setter that the JSON object names."""
    json.loads(string)  # raises what callers expect where it is no JSON at all
    core().applyJson(string, _Target(options))


def savedValues(text):
    """Native values of the options that a file was saved with; the place among other processes is this one's."""
    return core().savedOptionValues(text, _classes())
