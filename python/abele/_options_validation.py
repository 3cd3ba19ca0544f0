"""Checks that are made when a model is compiled: expert settings, and settings that contradict each other.

Source: spec options.md, sections 1, 2 and 5.
"""

import os

from . import enums
from ._errors import userError
from ._logging import logger
from ._native import core
from ._options_generated import DEFAULTS, POPART_KINDS, POPART_VALUES

# Types of what Options.toDict() holds beside the expert settings; keys that setters create are not in DEFAULTS.
_GENERAL = {
    **{key: type(value) for group in DEFAULTS.values() for key, value in group.items()},
    "random_seed": int,
    "model_name": str,
    "use_model": bool,
    "ipu_id": int,
    "ipu_version": int,
    "input_cgt": int,
    "output_return_period": int,
    "num_io_tiles": int,
    "device_memory_limit": (int, dict),
    "off_chip_memory_limit": int,
    "off_chip_folder": str,
    "ipuof_configs": dict,
    "execution_mode": int,
    "separate_backward_phase": bool,
    "tensors_liveness": int,
    "location_activation": dict,
    "location_weight": dict,
    "location_optimizer": dict,
    "location_accumulator": dict,
}
_UNSIGNED = range(2**64)


def kindOf(key, value):
    """Kind of an expert setting, by its Python type."""
    for kind, types in (
        ("bool", bool),
        ("int", int),
        ("float", float),
        ("str", str),
        ("container", (set, list, tuple)),
        ("map", dict),
    ):
        if isinstance(value, types):
            return kind
    raise userError(
        "E0702",
        "option-value",
        f"option {key} has the unsupported type {type(value).__name__}",
        expected="bool, int, float, str, set, list, tuple or dict",
    )


def _valueError(key, value, expected):
    return userError(
        "E0702",
        "option-value",
        f"option {key} is {value!r}",
        expected=expected,
        remedy="remove the setting or correct it",
    )


def _validateSetting(key, value):
    kind = kindOf(key, value)
    if POPART_KINDS.get(key) != kind:
        raise userError(
            "E0701",
            "unknown-option",
            f"Unknown {kind} option {key}",
            found=f"opts._Popart.set({key!r}, {value!r})",
            expected=f"a value of kind {POPART_KINDS[key]}"
            if key in POPART_KINDS
            else "a name that docs/options.md lists",
            remedy="remove the setting or correct it"
            if key in POPART_KINDS
            else core().didYouMean(key, list(POPART_KINDS), "remove the setting or correct it"),
        )
    if kind == "int" and value not in _UNSIGNED:
        raise _valueError(key, value, "an unsigned number of 64 bits")
    if kind == "int" and key in POPART_VALUES and value >= POPART_VALUES[key]:
        raise _valueError(key, value, f"a value of the enum, 0..{POPART_VALUES[key] - 1}")
    if kind == "container" and not all(isinstance(item, (str, int)) for item in value):
        raise _valueError(key, value, "a container of strings or integers")
    if kind == "map" and not all(
        isinstance(name, str) and isinstance(item, (str, bool, int, float)) for name, item in value.items()
    ):
        raise _valueError(key, value, "a dict with strings as names, and strings, numbers or bools as values")
    if key == "logDir":
        logger.warning("option logDir is ignored: use opts.logDir(folder)")
    logger.debug("option %s = %r", key, value)


def validatePopart(settings):
    """Raises poptorch.Error for an unknown name or a value of the wrong kind."""
    for key, value in settings.items():
        _validateSetting(key, value)
    if "patterns" in settings and "patterns_level" not in settings:
        raise userError(
            "E0702",
            "option-value",
            "patterns are set without a level",
            remedy="use opts._Popart.setPatterns(patterns, level)",
        )


def validateOptions(values):
    """Raises poptorch.Error for what Options.toDict() could not have made: an unknown name or a wrong type."""
    if not isinstance(values, dict):
        raise userError("E0708", "arguments", f"options are a {type(values).__name__}", expected="a dict")
    settings = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise userError("E0701", "unknown-option", f"an option is named {key!r}", expected="a string")
        expected = _GENERAL.get(key)
        if expected is None and not callable(value):
            settings[key] = value
        elif expected is None and key != "compilation_progress_bar_fn":
            raise userError("E0701", "unknown-option", f"option {key!r} is set to a function")
        elif expected is not None and not isinstance(value, expected):
            names = expected if isinstance(expected, tuple) else (expected,)
            raise _valueError(key, value, " or ".join(name.__name__ for name in names))
    validatePopart(settings)


def usesModel(options):
    """Is the modelled device chosen? The option wins over the environment."""
    if options.exists("use_model"):
        return options.use_model
    return any(
        os.environ.get(name, "0") not in ("", "0") for name in ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")
    )


def requireConsistent(options):
    """Raises poptorch.Error for numbers below 1 and for choices of a device that exclude each other."""
    for name, number in (
        ("deviceIterations", options.device_iterations),
        ("gradientAccumulation", options.Training.gradient_accumulation),
        ("replicationFactor", options.replication_factor),
    ):
        if number < 1:
            raise userError("E0702", "option-value", f"{name} is {number}", expected=f"{name} >= 1")
    counts_cycles = options._Popart.options.get("instrumentWithHardwareCycleCounter", False)
    is_offline = options.exists("ipu_version") and options.connection_type == enums.ConnectionType.Never
    for name, is_set in (
        ("the IPU model", is_offline and usesModel(options)),
        ("useIpuId", is_offline and options.exists("ipu_id")),
        ("logCycleCount(True)", is_offline and counts_cycles),
    ):
        if is_set:
            raise userError(
                "E0702",
                "option-value",
                f"useOfflineIpuTarget and {name} are both chosen",
                expected="one of them",
                remedy="remove one of the settings",
            )
    if counts_cycles and usesModel(options):
        raise userError(
            "E0702",
            "option-value",
            "logCycleCount(True) with the IPU model, which has no cycle counter",
            remedy="opts.useIpuModel(False), and unset POPTORCH_IPU_MODEL",
        )
