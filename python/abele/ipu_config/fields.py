"""The settings of an IPUConfig: one table of names, types, defaults and limits."""

import numbers
import re

from .._errors import refused

OUTPUT_MODES = ("all", "sum", "final", "default")


class IncompatibleIPUConfigError(ValueError):
    """Settings that contradict each other, or the model that they are used with."""


def _isInt(value):
    return isinstance(value, int)


def _isFloat(value):
    return isinstance(value, numbers.Real)


def _listOf(isItem):
    return lambda value: isinstance(value, list) and all(isItem(item) for item in value)


def _isKeywords(value):
    return isinstance(value, dict) and all(isinstance(key, str) for key in value)


# What a type accepts, by the name that messages give it.
_TYPES = {
    "int": _isInt,
    "bool": lambda value: isinstance(value, bool),
    "str": lambda value: isinstance(value, str),
    "list of int": _listOf(_isInt),
    "float or list of float": lambda value: _isFloat(value) or _listOf(_isFloat)(value),
    "dict with str keys": _isKeywords,
}


class Field:
    """One setting.

    Args:
        type_name: a key of _TYPES.
        default: its value where none is given. None: it depends on others, see IPUConfig.
        least: the least value, of lists of each element.
        optional: None is a value.
        by_mode: there is a twin "inference_<name>" for inference.
        consecutive: a list of the pieces on each IPU: at least one, and no gap between two.
    """

    def __init__(self, type_name, default=None, least=None, optional=False, by_mode=False, consecutive=False):
        self.type_name, self.default, self.least = type_name, default, least
        self.optional, self.by_mode, self.consecutive = optional, by_mode, consecutive

    def check(self, name, value):
        """Raises TypeError or ValueError where the setting cannot have the value."""
        if value is None and self.optional:
            return
        if not _TYPES[self.type_name](value):
            or_none = " or None" if self.optional else ""
            raise refused(TypeError, f"IPUConfig.{name} takes {self.type_name}{or_none}, got {value!r}")
        values = value if isinstance(value, list) else [value]
        if self.least is not None and any(item < self.least for item in values):
            raise refused(ValueError, f"IPUConfig.{name} takes values >= {self.least}, got {value!r}")
        if name == "output_mode" and value not in OUTPUT_MODES:
            raise refused(ValueError, f"IPUConfig.{name} is one of {', '.join(OUTPUT_MODES)}, got {value!r}")
        if self.consecutive:
            _requireConsecutive(name, value)

    def parse(self, name, text):
        """A value from the text of IPUConfig.update_from_string. Raises ValueError."""
        try:
            return _PARSERS[self.type_name](text)
        except (KeyError, ValueError):
            raise refused(ValueError, f"IPUConfig.{name} takes {self.type_name}, got the text {text!r}") from None


def _requireConsecutive(name, splits):
    if sum(splits) == 0:
        raise refused(ValueError, f"IPUConfig.{name} needs a piece on at least one IPU, got {splits!r}")
    used = [ipu for ipu, pieces in enumerate(splits) if pieces]
    if used != list(range(used[0], used[-1] + 1)):
        raise refused(ValueError, f"IPUConfig.{name} needs its pieces on consecutive IPUs, got {splits!r}")


def _parseBool(text):
    return {"true": True, "1": True, "y": True, "yes": True, "false": False, "0": False, "n": False, "no": False}[
        text.lower()
    ]


def _parseList(parse):
    def parseItems(text):
        if not (text.startswith("[") and text.endswith("]")):
            raise refused(ValueError, text)
        return [parse(item) for item in re.split(r"[\s,]+", text[1:-1].strip()) if item]

    return parseItems


_PARSERS = {
    "int": int,
    "bool": _parseBool,
    "str": str,
    "list of int": _parseList(int),
    "float or list of float": lambda text: _parseList(float)(text) if text.startswith("[") else float(text),
}


def _factor():
    return Field("int", least=1, optional=True, by_mode=True)


def _splits():
    return Field("list of int", least=0, optional=True, by_mode=True, consecutive=True)


# In the order of the constructor's arguments; a twin for inference follows its setting.
_TABLE = {
    "replication_factor": Field("int", 1, least=1, by_mode=True),
    "gradient_accumulation_steps": Field("int", 1, least=1),
    "layers_per_ipu": Field("list of int", least=-1, by_mode=True),
    "ipus_per_replica": Field("int", least=1, by_mode=True),
    "optimizer_state_offchip": Field("bool", False),
    "replicated_tensor_sharding": Field("bool", False),
    "matmul_proportion": Field("float or list of float", 0.2, least=0, by_mode=True),
    "enable_half_partials": Field("bool", True),
    "embedding_serialization_factor": _factor(),
    "serialized_embedding_splits_per_ipu": _splits(),
    "projection_serialization_factor": _factor(),
    "serialized_projection_splits_per_ipu": _splits(),
    "recompute_checkpoint_every_layer": Field("bool", False),
    "device_iterations": Field("int", 1, least=1, by_mode=True),
    "output_mode": Field("str", "final"),
    "seed": Field("int", optional=True),
    "auto_loss_scaling": Field("bool", False),
    "executable_cache_dir": Field("str", ""),
    "explicit_ir_inference": Field("bool", False),
    "parallelize_kwargs": Field("dict with str keys", by_mode=True),
    "execute_encoder_on_cpu_for_generation": Field("bool", False),
}
INFERENCE = "inference_"
FIELDS = {}
for _name, _field in _TABLE.items():
    FIELDS[_name] = _field
    if _field.by_mode:
        FIELDS[INFERENCE + _name] = _field
