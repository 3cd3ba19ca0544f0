"""IPUConfig: how many virtual devices this process uses, and how they compute. Source: spec keras.md, section 1.

A device is a worker with its own threads and memory on this machine (docs/architecture.md). Settings that only the
original hardware had are stored and checked, and have no effect.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import Any, Self

from .._errors import refused


class DeviceConnectionType(enum.Enum):
    """When a program is on its devices. NEVER and PRE_COMPILE: models are compiled and never run."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class SelectionOrder(enum.Enum):
    """Order of devices in the original hardware's links."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class SchedulingAlgorithm(enum.Enum):
    """Order of operations inside of a device."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(enum.Enum):
    """Which float16 results are rounded at random."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @classmethod
    def from_bool(cls, value):
        """ON or OFF."""
        return cls.ON if value else cls.OFF


class MergeRemoteBuffersBehaviour(enum.Enum):
    """Whether equal buffers off chip become one."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


def _type_name(kind):
    return " or ".join(part.__name__ for part in kind) if isinstance(kind, tuple) else kind.__name__


def _checked(path, kind, value):
    """The value in its stored form."""
    kinds = kind if isinstance(kind, tuple) else (kind,)
    is_wrong_bool = isinstance(value, bool) and bool not in kinds
    if isinstance(value, int) and float in kinds and not is_wrong_bool:
        return float(value)
    if is_wrong_bool or not isinstance(value, kinds):
        raise refused(
            TypeError,
            f"Trying to set config attribute {path} to value {value!r} of type {type(value).__name__}, but it must be "
            f"of type {_type_name(kind)}.",
        )
    if isinstance(value, (list, tuple)):
        wrong = [item for item in value if not isinstance(item, int) or isinstance(item, bool)]
        if wrong:
            raise refused(
                TypeError, f"All elements of config attribute {path} must be of type int, but found {wrong[0]!r}."
            )
        return list(value)
    return dict(value) if isinstance(value, dict) else value


# name -> a dict (an inner group), or (type, default).
_SELECTION = ((int, list, tuple), ())
_TREE = {
    "allow_recompute": (bool, False),
    "selection_order": (SelectionOrder, SelectionOrder.AUTO),
    "serialization_output_folder": (str, ""),
    "auto_select_ipus": _SELECTION,
    "select_ipus": _SELECTION,
    "compilation_options": (dict, {}),
    "gcl_options": (dict, {}),
    "convolutions": {"poplar_options": (dict, {})},
    "device_connection": {
        "version": (str, ""),
        "type": (DeviceConnectionType, DeviceConnectionType.ALWAYS),
        "enable_remote_buffers": (bool, False),
    },
    "experimental": {
        "always_rearrange_copies_on_the_host": (bool, False),
        "enable_remote_buffer_embedding": (bool, False),
        "enable_prng_stability": (bool, False),
        "multi_replica_distribution": {"process_count": (int, 0), "process_index": (int, 0)},
    },
    "floating_point_behaviour": {
        "inv": (bool, False),
        "div0": (bool, False),
        "oflo": (bool, False),
        "esr": ((bool, StochasticRoundingBehaviour), StochasticRoundingBehaviour.OFF),
        "nanoo": (bool, False),
        "set_all": (bool, False),
    },
    "io_tiles": {
        "num_io_tiles": (int, 0),
        "place_ops_on_io_tiles": (bool, False),
        "available_memory_proportion": (float, 0.9),
    },
    "ipu_model": {"compile_ipu_code": (bool, True), "tiles_per_ipu": (int, 0), "version": (str, "ipu2")},
    "matmuls": {"clear_pass_type": (bool, False), "poplar_options": (dict, {})},
    "norms": {
        "use_stable_statistics": (bool, False),
        "experimental": {"distributed_batch_norm_replica_group_size": (int, 1)},
    },
    "optimizations": {
        "math": {"fast": (bool, False), "dot_strength": (bool, True)},
        "prefetch_data_streams": (bool, True),
        "combine_embedding_lookups": (bool, False),
        "combine_matmuls": (bool, False),
        "enable_graph_outlining": (bool, True),
        "enable_gather_simplifier": (bool, False),
        "enable_dynamic_slice_replacement": (bool, True),
        "merge_infeed_io_copies": (bool, False),
        "merge_remote_buffers": (MergeRemoteBuffersBehaviour, MergeRemoteBuffersBehaviour.IF_BENEFICIAL),
        "maximum_cross_replica_sum_buffer_size": (int, 0),
        "maximum_reduce_scatter_buffer_size": (int, 0),
        "maximum_inter_ipu_copies_buffer_size": (int, 0),
        "maximum_send_recv_cluster_size": (int, 0),
        "minimum_remote_tensor_size": (int, 128),
        "triangular_solve_expander_block_size": (int, 0),
        "cholesky_block_size": (int, 0),
    },
    "pooling": {"poplar_options": (dict, {})},
    "scheduling": {
        "algorithm": (SchedulingAlgorithm, SchedulingAlgorithm.CHOOSE_BEST),
        "maximum_scheduler_lookahead_depth": (int, 5),
        "maximum_scheduler_search_space_size": (int, 64),
    },
    "slices": {"poplar_options": (dict, {})},
}


class _Group:
    """A group of settings. Only the known ones can be set, and only to values of their types."""

    def __init__(self, tree, path):
        values = {}
        for name, entry in tree.items():
            inner = f"{path}.{name}" if path else name
            values[name] = _Group(entry, inner) if isinstance(entry, dict) else _checked(inner, *entry)
        object.__setattr__(self, "_tree", tree)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_values", values)

    def _unknown(self, name):
        where = f"The config group {self._path}" if self._path else "IPUConfig"
        return AttributeError(f"{where} has no attribute {name!r}. Known: {', '.join(sorted(self._values))}.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return self._values[name]
        except KeyError:
            raise self._unknown(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            raise self._unknown(name)
        path = f"{self._path}.{name}" if self._path else name
        entry = self._tree[name]
        if isinstance(entry, dict):
            raise refused(AttributeError, f"The config group {path} cannot be replaced: set its attributes.")
        self._values[name] = _checked(path, entry[0], value)

    def __delattr__(self, name):
        raise refused(AttributeError, f"Config attribute {name!r} cannot be deleted.")

    def __dir__(self):
        return [*super().__dir__(), *self._values]

    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self._values.items())})"

    def _to_dict(self):
        plain = lambda value: value.name if isinstance(value, enum.Enum) else value  # noqa: E731
        return {
            name: value._to_dict() if isinstance(value, _Group) else plain(value)
            for name, value in self._values.items()
        }

    def _from_dict(self, values):
        for name, value in values.items():
            if name not in self._values:
                raise self._unknown(name)
            if isinstance(self._tree[name], dict):
                self._values[name]._from_dict(value)
                continue
            kinds = self._tree[name][0]
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                if isinstance(value, str) and issubclass(kind, enum.Enum) and value in kind.__members__:
                    value = kind[value]
            setattr(self, name, value)


class IPUConfig(_Group):
    """The settings of this process, as a tree of attributes.

    >>> config = IPUConfig()
    >>> config.auto_select_ipus = 2
    >>> config.configure_ipu_system()

    Raises:
        AttributeError: an attribute that does not exist.
        TypeError: a value of another type than the attribute's.
    """

    def __init__(self) -> None:
        super().__init__(_TREE, "")

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Makes the present settings those of the process. Models that run later use them.

        Args:
            device: accepted without effect, for programs that name it.
        Raises:
            ValueError: devices are selected in two ways, or their number is impossible.
        """
        _check(self)
        configured = IPUConfig()
        configured._from_dict(self.to_dict())
        _configured.append(configured)
        del _configured[:-1]

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain values; enumerations by name."""
        return self._to_dict()

    def to_json(self) -> str:
        """to_dict() as JSON text."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The settings of to_dict(). Missing ones keep their defaults."""
        result = cls()
        result._from_dict(values)
        return result

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The settings of to_json()."""
        return cls.from_dict(json.loads(text))

    def get_attribute_metadata(self, attr: str) -> dict[str, Any]:
        """A description of an attribute, given by its path ("device_connection.type").

        Returns: {"name", "type", "default"}.
        Raises:
            ValueError: an unknown attribute.
        """
        entry = _TREE
        for part in attr.split("."):
            if not isinstance(entry, dict) or part not in entry:
                raise refused(ValueError, f"Could not get attribute metadata for {attr!r}: there is no such attribute.")
            entry = entry[part]
        kind, default = (dict, None) if isinstance(entry, dict) else entry
        return {"name": attr, "type": kind, "default": default}


_configured = []  # the configuration of the process, if there is one


def _check(config):
    chosen = [name for name in ("auto_select_ipus", "select_ipus") if config._values[name] not in ([], 0)]
    if len(chosen) == 2:
        raise refused(ValueError, "Only one of `auto_select_ipus` and `select_ipus` can be set.")
    for name in chosen:
        value = config._values[name]
        numbers = [value] if isinstance(value, int) else value
        least = 1 if name == "auto_select_ipus" else 0
        if any(number < least for number in numbers):
            raise refused(ValueError, f"Expected `{name}` to have values of at least {least}, but got {value!r}.")


def configure_ipu_system(config: IPUConfig, device: str = "cpu", reset_configuration: bool = True) -> None:
    """config.configure_ipu_system(device).

    Args:
        reset_configuration: no effect, because the settings replace earlier ones anyway.
    """
    config.configure_ipu_system(device)


def reset_ipu_configuration() -> None:
    """Returns to the state of a process that was never configured."""
    _configured.clear()


def get_ipu_config() -> IPUConfig:
    """The configuration of the process.

    Raises:
        RuntimeError: the process is not configured.
    """
    if not _configured:
        raise refused(RuntimeError, "No IPUConfig has been configured: call configure_ipu_system() of one first.")
    return _configured[0]


def current():
    """The configuration of the process, or the defaults."""
    return _configured[0] if _configured else IPUConfig()


def selected_devices():
    """Devices that a strategy can use; None if not configured: as many as a model asks for."""
    if not _configured:
        return None
    config = _configured[0]
    automatic, listed = config.auto_select_ipus, config.select_ipus
    if automatic not in ([], 0):
        return automatic if isinstance(automatic, int) else automatic[0]
    if isinstance(listed, int):
        return 1
    return len(listed) or 1
