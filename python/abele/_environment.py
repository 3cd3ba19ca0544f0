"""Environment variables that are read when a model is compiled. Source: spec environment.md, section 3."""

import json
import os

from ._errors import userError
from ._logging import logger

_PROFILE_OPTIONS = ("debug.allowOutOfMemory", "autoReport.directory", "autoReport.all")


def integer(name, default=0):
    """The value of an integer variable; the default when it is not set or empty.

    Raises:
        poptorch.Error: it is no integer.
    """
    text = os.environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise userError(
            "E0702",
            "option-value",
            f"environment variable {name} is {text!r}",
            expected="an integer",
            remedy=f"set {name} to an integer or unset it",
        ) from None


def simulatorIsChosen():
    """True if a variable asks for the modelled device."""
    return bool(integer("POPTORCH_IPU_MODEL")) or bool(integer("POPTORCH_SMALL_IPU_MODEL"))


def usesSimulator(options):
    """True if a model with these options runs on the modelled device: opts.useIpuModel() wins over the variables."""
    return options.use_model if options.exists("use_model") else simulatorIsChosen()


def engineOptions(options):
    """The engine options: those of the Options, and over them those of POPLAR_ENGINE_OPTIONS."""
    result = dict(options._Popart.options.get("engineOptions") or {})
    text = os.environ.get("POPLAR_ENGINE_OPTIONS", "")
    if not text:
        return result
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise userError(
            "E0702",
            "option-value",
            f"environment variable POPLAR_ENGINE_OPTIONS is {text!r}",
            expected='a JSON object such as {"autoReport.all":"true"}',
        )
    for name in _PROFILE_OPTIONS:
        if name in given and name in result and str(given[name]) != result[name]:
            logger.warning("POPLAR_ENGINE_OPTIONS sets %s: it wins over enableProfiling", name)
    return {**result, **{name: str(value) for name, value in given.items()}}
