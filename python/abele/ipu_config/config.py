"""IPUConfig: how a model runs as a pipeline. C++ has the settings, their rules and the options that they become:
src/options/ipu_config.h, include/abele/ipu_config.h.

Source: the documents' IPUConfig._to_options, and the files and defaults of optimum-graphcore 0.7.
"""

import copy
import itertools
import json
import os
import tempfile
import warnings
from collections.abc import Mapping, Sized
from typing import Any, Self

from .. import _errors
from .._devices import ipuHardwareVersion
from .._errors import Error, refused
from .._native import core
from .._whole_files import read_text
from ..options import Options

_DEPRECATED = {
    "sharded_execution_for_inference": "inference always uses sharded execution",
    "enable_half_first_order_momentum": "the optimizer's first_order_momentum_accum_type says it",
    "profile_dir": "Options.enableProfiling says it",
    "use_popdist": "the environment says it",
}
_HUB_ARGUMENTS = frozenset(
    ("cache_dir", "force_download", "local_files_only", "proxies", "resume_download", "revision", "token")
)
_MODES = ("training", "inference")
_OUTPUT_MODES = ("all", "sum", "final", "default")


class IncompatibleIPUConfigError(ValueError):
    """Settings that contradict each other, or contradict the model."""


_errors.OF_OPTIONS["IncompatibleIPUConfigError"] = IncompatibleIPUConfigError


class _OfTheMode:
    """Attribute `_<name>`: the setting `<name>` in training mode, `inference_<name>` in inference mode."""

    def __set_name__(self, owner, name):
        self._name = name.removeprefix("_")

    def __get__(self, config, owner=None):
        return self if config is None else getattr(config, config._get_managed_attr_mode_name(self._name))

    def __set__(self, config, value):
        setattr(config, config._get_managed_attr_mode_name(self._name), value)


class IPUConfig:
    """Placement, batch arithmetic and memory settings of a pipelined model. A setting with a twin `inference_...`
    applies to training, and its twin to inference.

    Settings are attributes. Each is checked when it is set: TypeError for another type, ValueError for a value out of
    range, AttributeError for an unknown name.

    Args:
        replication_factor, inference_replication_factor: copies of the model. 1.
        gradient_accumulation_steps: micro-batches of a weight update. 1.
        layers_per_ipu: layers on each IPU, as [2, 3, 4, 2]. -1 stands for an equal share of the remaining layers; [-1]
            (default) shares all of them among ipus_per_replica IPUs.
        inference_layers_per_ipu: default: layers_per_ipu.
        ipus_per_replica: default: len(layers_per_ipu).
        inference_ipus_per_replica: default: len(inference_layers_per_ipu), or ipus_per_replica if only that is given.
        optimizer_state_offchip: keeps the optimizer's state in off-chip memory. False.
        replicated_tensor_sharding: shares the optimizer's state among the replicas. False.
        matmul_proportion: temporary memory for operators, of each IPU or of all; a hint. 0.2.
        inference_matmul_proportion: default: matmul_proportion if it fits the number of IPUs, otherwise 0.2.
        enable_half_partials: partial sums in float16; a hint. True.
        embedding_serialization_factor, projection_serialization_factor (and their twins): number of pieces in which an
            embedding or a projection is computed, one after the other. Default: 1, unless there are splits.
        serialized_embedding_splits_per_ipu, serialized_projection_splits_per_ipu (and their twins): pieces of the
            layer on each IPU, as [3, 1, 0, 0]; consecutive. Replaces a factor. None.
        recompute_checkpoint_every_layer: keeps the output of every layer for backward. False.
        device_iterations, inference_device_iterations: steps of one call. 1.
        output_mode: "all", "sum", "final" or "default": which results a training step returns. "final".
        seed: of the random numbers; None and 0: not set.
        auto_loss_scaling: False.
        executable_cache_dir: folder of compiled programs; "" and "disabled": no folder.
        explicit_ir_inference: a hint. False.
        parallelize_kwargs, inference_parallelize_kwargs: for the model's parallelize(). {}.
    Raises:
        IncompatibleIPUConfigError: settings that are unknown or contradict each other.
        ValueError, TypeError: a value that the setting cannot have; a factor together with splits.
    """

    modes = _MODES

    replication_factor: int
    inference_replication_factor: int
    gradient_accumulation_steps: int
    layers_per_ipu: list[int]
    inference_layers_per_ipu: list[int]
    ipus_per_replica: int
    inference_ipus_per_replica: int
    optimizer_state_offchip: bool
    replicated_tensor_sharding: bool
    matmul_proportion: float | list[float]
    inference_matmul_proportion: float | list[float]
    enable_half_partials: bool
    embedding_serialization_factor: int | None
    inference_embedding_serialization_factor: int | None
    serialized_embedding_splits_per_ipu: list[int] | None
    inference_serialized_embedding_splits_per_ipu: list[int] | None
    projection_serialization_factor: int | None
    inference_projection_serialization_factor: int | None
    serialized_projection_splits_per_ipu: list[int] | None
    inference_serialized_projection_splits_per_ipu: list[int] | None
    recompute_checkpoint_every_layer: bool
    device_iterations: int
    inference_device_iterations: int
    output_mode: str
    seed: int | None
    auto_loss_scaling: bool
    executable_cache_dir: str
    explicit_ir_inference: bool
    parallelize_kwargs: dict[str, Any]
    inference_parallelize_kwargs: dict[str, Any]
    execute_encoder_on_cpu_for_generation: bool

    _layers_per_ipu = _OfTheMode()
    _ipus_per_replica = _OfTheMode()
    _matmul_proportion = _OfTheMode()
    _embedding_serialization_factor = _OfTheMode()
    _serialized_embedding_splits_per_ipu = _OfTheMode()
    _projection_serialization_factor = _OfTheMode()
    _serialized_projection_splits_per_ipu = _OfTheMode()
    _parallelize_kwargs = _OfTheMode()

    def __init__(
        self,
        replication_factor: int = 1,
        inference_replication_factor: int = 1,
        gradient_accumulation_steps: int = 1,
        layers_per_ipu: list[int] | tuple[int, ...] = (-1,),
        inference_layers_per_ipu: list[int] | None = None,
        ipus_per_replica: int | None = None,
        inference_ipus_per_replica: int | None = None,
        optimizer_state_offchip: bool = False,
        replicated_tensor_sharding: bool = False,
        matmul_proportion: float | list[float] = 0.2,
        inference_matmul_proportion: float | list[float] | None = None,
        enable_half_partials: bool = True,
        embedding_serialization_factor: int | None = None,
        inference_embedding_serialization_factor: int | None = None,
        serialized_embedding_splits_per_ipu: list[int] | None = None,
        inference_serialized_embedding_splits_per_ipu: list[int] | None = None,
        projection_serialization_factor: int | None = None,
        inference_projection_serialization_factor: int | None = None,
        serialized_projection_splits_per_ipu: list[int] | None = None,
        inference_serialized_projection_splits_per_ipu: list[int] | None = None,
        recompute_checkpoint_every_layer: bool = False,
        device_iterations: int = 1,
        inference_device_iterations: int = 1,
        output_mode: str = "final",
        seed: int | None = None,
        auto_loss_scaling: bool = False,
        executable_cache_dir: str = "",
        explicit_ir_inference: bool = False,
        parallelize_kwargs: dict[str, Any] | None = None,
        inference_parallelize_kwargs: dict[str, Any] | None = None,
        **others: Any,
    ) -> None:
        given = {name: value for name, value in locals().items() if name in core().ipuSettingNames()}
        if layers_per_ipu == (-1,):
            given["layers_per_ipu"] = [-1]
        _warn_of_deprecated(others)
        self.train()
        self._take(core().completeIpuSettings({**given, **others}), given)

    def _take(self, settings, own):
        for name, value in settings.items():
            # Its values may be of any type, so Python holds them and not C++.
            is_own = name.endswith("parallelize_kwargs") and own.get(name)
            self.__dict__[name] = own[name] if is_own else value

    def __setattr__(self, name, value):
        if name in core().ipuSettingNames():
            held = core().checkedIpuSetting(name, value)
            value = value if name.endswith("parallelize_kwargs") else held
        elif not hasattr(type(self), name) and name != "_mode":
            raise refused(AttributeError, f"IPUConfig has no setting {name!r}")
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        return self.to_dict() == other.to_dict() if isinstance(other, IPUConfig) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        return f"IPUConfig {self.to_json_string()}"

    # Modes -----------------------------------------------------------------------------------------------------------
    @property
    def mode(self) -> str:
        """ "training" or "inference": which of the two twins `config._<setting>` reads."""
        return self._mode

    @mode.setter
    def mode(self, value: str) -> None:
        if value not in _MODES:
            raise refused(ValueError, f"IPUConfig.mode is one of {', '.join(_MODES)}, got {value!r}")
        self._mode = value

    def train(self) -> Self:
        """Changes to training mode. Returns: the config."""
        self.mode = "training"
        return self

    def eval(self) -> Self:
        """Changes to inference mode. Returns: the config."""
        self.mode = "inference"
        return self

    def _get_managed_attr_mode_name(self, attr):
        """The setting's name in the present mode."""
        return core().ipuSettingOf(attr, self._mode == "inference")

    def _validate_ipu_config(self):
        """Checks the settings against each other in both modes, and fills in the factors. Returns: the config."""
        self._take(core().validateIpuSettings(self.__dict__), self.__dict__)
        return self

    # Files: ipu_config.json, with which models are published ----------------------------------------------------------
    CONFIG_NAME = "ipu_config.json"
    FULL_CONFIGURATION_FILE = "ipu_config.json"

    def to_dict(self) -> dict[str, Any]:
        """All settings, as copies, by name."""
        return {name: copy.deepcopy(self.__dict__[name]) for name in core().ipuSettingNames()}

    def to_json_string(self, use_diff: bool = True) -> str:
        """The text of the file: all settings, sorted by name. `use_diff` has no effect."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | os.PathLike[str], use_diff: bool = True) -> None:
        """Writes to_json_string() to a file."""
        with open(json_file_path, "w", encoding="utf-8") as file:
            file.write(self.to_json_string(use_diff))

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Writes `ipu_config.json` into a folder. Makes the folder.

        Raises:
            AssertionError: the path is a file.
            NotImplementedError: push_to_hub; huggingface_hub.upload_file does that.
        """
        if push_to_hub:
            raise NotImplementedError("push_to_hub: write the folder, and give it to huggingface_hub.upload_folder")
        if os.path.isfile(save_directory):
            raise refused(AssertionError, f"{save_directory} is a file, not a folder")
        os.makedirs(save_directory, exist_ok=True)
        self.to_json_file(os.path.join(save_directory, self.CONFIG_NAME))

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any], return_unused_kwargs: bool = False, **kwargs: Any) -> Any:
        """A config from a dict, as to_dict() returns it.

        Args:
            kwargs: settings that replace the dict's.
            return_unused_kwargs: also return arguments that are not settings.
        Returns: an IPUConfig, or (IPUConfig, dict).
        Raises: the errors of the constructor.
        """
        config = cls(**config_dict)
        unused = {}
        for name, value in kwargs.items():
            if name in core().ipuSettingNames():
                setattr(config, name, value)
            else:
                unused[name] = value
        return (config, unused) if return_unused_kwargs else config

    @classmethod
    def from_json_file(cls, json_file: str | os.PathLike[str]) -> Self:
        """A config from a file. Raises OSError."""
        return cls(**_read(json_file))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], subfolder: str = "", **kwargs: Any
    ) -> Any:
        """A config from a folder with an `ipu_config.json`, from a file, or from a model's name on the Hub.

        Args:
            subfolder: of the folder or of the Hub's model.
            kwargs: settings that replace the file's; `return_unused_kwargs`; arguments of the Hub's download
                (`revision`, `cache_dir`, ...).
        Returns: an IPUConfig; with return_unused_kwargs, (IPUConfig, dict).
        Raises:
            OSError: the file is missing or not JSON, or the name needs the package huggingface_hub.
            ValueError, TypeError: the errors of the constructor.
        """
        values, others = cls.get_config_dict(pretrained_model_name_or_path, subfolder=subfolder, **kwargs)
        return cls.from_dict(values, **others)

    @classmethod
    def get_config_dict(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], subfolder: str = "", **kwargs: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings that from_pretrained reads. Returns: (dict, the unused arguments)."""
        download = {name: kwargs.pop(name) for name in _HUB_ARGUMENTS & kwargs.keys()}
        path = os.fspath(pretrained_model_name_or_path)
        if os.path.isdir(path):
            return _read(os.path.join(path, subfolder, cls.CONFIG_NAME)), kwargs
        if os.path.exists(os.path.join(subfolder, path)):
            return _read(os.path.join(subfolder, path)), kwargs
        return _read(_from_hub(path, cls.CONFIG_NAME, subfolder, download)), kwargs

    def update(self, config_dict: Mapping[str, Any]) -> None:
        """Sets several settings. Raises: the errors of setting one."""
        for name, value in config_dict.items():
            setattr(self, name, value)

    def update_from_string(self, update_str: str) -> None:
        """Sets settings from "name=value,name=value"; lists are written [a b c d], booleans true or false.

        Raises:
            ValueError: an unknown setting, or a text that does not fit its type.
        """
        for item in update_str.split(","):
            name, equals, text = item.partition("=")
            if not equals:
                raise refused(ValueError, f"IPUConfig: {item!r} is not <setting>=<value>")
            setattr(self, name, core().parseIpuSetting(name, text))

    # Options ---------------------------------------------------------------------------------------------------------
    def to_options(self, for_inference: bool = False, compile_only: bool = False) -> Options:
        """The Options for these settings.

        Args:
            for_inference: for inferenceModel: sharded execution, all outputs, the settings of inference.
            compile_only: for machines without devices: compiles, and refuses to run.
        Returns: Options, not frozen.
        Raises:
            RuntimeError: the machine has no device of the second generation, and compile_only is False.
            NotImplementedError: execute_encoder_on_cpu_for_generation is set.
            KeyError: an unknown output_mode.
            IncompatibleIPUConfigError: matmul_proportion has another length than ipus_per_replica.
        """
        return self._to_options(for_inference=for_inference, compile_only=compile_only)

    def _to_options(self, for_inference=False, compile_only=False):
        if not compile_only and not _has_second_generation():
            raise refused(RuntimeError, "This requires an IPU Mk2 system to run.")
        if self.execute_encoder_on_cpu_for_generation:
            raise NotImplementedError("execute_encoder_on_cpu_for_generation is not supported yet.")
        if self.output_mode not in _OUTPUT_MODES:
            supported = ", ".join(_OUTPUT_MODES)
            raise KeyError(
                f"{self.output_mode} is not a valid poptorch.OutputMode, supported output modes: {supported}"
            )
        options = Options().from_json(core().optionsOfIpuSettings(self.__dict__, for_inference))
        if compile_only:
            options.useOfflineIpuTarget()
        options._Popart.set("saveInitializersToFile", _new_file_name())
        return options

    def batch_size_factor(self, for_inference: bool = False) -> int:
        """Micro-batches of one call: replicas x accumulation (training) x device iterations."""
        if for_inference:
            return self.inference_replication_factor * self.inference_device_iterations
        return self.replication_factor * self.gradient_accumulation_steps * self.device_iterations


def _warn_of_deprecated(others):
    for name, instead in _DEPRECATED.items():
        if others.pop(name, None):
            warnings.warn(f"IPUConfig: {name} is deprecated: {instead}", stacklevel=3)


def _has_second_generation():
    try:
        return ipuHardwareVersion() in (2, 21)
    except AssertionError:  # the machine has no devices
        return False


def _new_file_name():
    with tempfile.NamedTemporaryFile() as file:
        return file.name


def _read(path):
    try:
        values = json.loads(read_text(path))
    except (ValueError, RecursionError, Error) as error:  # JSON, its depth or characters; pipes, devices, whole disks
        raise OSError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(values, dict):
        raise OSError(f"{path} does not hold a JSON object")
    return values


def _from_hub(model, file_name, subfolder, download):
    try:
        import huggingface_hub
    except ImportError as error:
        raise OSError(
            f"{model!r} is no folder and no file; for a model of the Hugging Face Hub, install huggingface_hub"
        ) from error
    return huggingface_hub.hf_hub_download(model, file_name, subfolder=subfolder or None, **download)


# Which layer runs on which IPU ----------------------------------------------------------------------------------------
def get_layer_ipu(ipu_config: IPUConfig, target_number_of_layers: int | Sized | None = None) -> list[int]:
    """The IPU of each layer, by the config's mode.

    With one IPU per replica all layers are on it. -1 in layers_per_ipu stands for an equal share of the remaining
    layers; the last IPU with a -1 also takes the remainder.

    Args:
        ipu_config: an IPUConfig.
        target_number_of_layers: number of layers, or the layers; None: the sum of layers_per_ipu.
    Returns: a list with a number for each layer, as [0, 0, 1, 1, 1].
    Raises:
        IncompatibleIPUConfigError: layers_per_ipu does not fit ipus_per_replica or the number of layers.
    """
    shares = layers_per_ipu(ipu_config, target_number_of_layers)
    return [ipu for ipu, layers in enumerate(shares) for _ in range(layers)]


def layers_per_ipu(config, layers=None):
    """layers_per_ipu of the config's mode without wildcards. Arguments and errors: get_layer_ipu."""
    layers = layers if layers is None or isinstance(layers, int) else len(layers)
    return core().layersPerIpu(config.__dict__, config.mode == "inference", layers)


def _incompatible(config, why):
    names = [config._get_managed_attr_mode_name(name) for name in ("layers_per_ipu", "ipus_per_replica")]
    return IncompatibleIPUConfigError(
        f"IPUConfig: {' and '.join(f'{name}={getattr(config, name)!r}' for name in names)} cannot be used: {why}"
    )


def split_encoder_decoder_ipu_config(
    ipu_config: IPUConfig, num_encoder_layers: int, num_decoder_layers: int
) -> tuple[IPUConfig, IPUConfig]:
    """The configs of the encoder's and the decoder's part of a pipeline.

    The encoder gets the first IPUs, a power of two of them, which must hold exactly its layers. Settings by IPU are
    split between the parts. Pieces of an embedding belong to the encoder, those of a projection to the decoder.

    Args:
        ipu_config: an IPUConfig; its mode says which settings are split.
        num_encoder_layers, num_decoder_layers: of the model.
    Returns: (IPUConfig of the encoder, IPUConfig of the decoder).
    Raises:
        IncompatibleIPUConfigError: fewer than two IPUs, or no valid place to cut.
        ValueError: pieces of an embedding on the decoder's IPUs, or of a projection on the encoder's.
    """
    if ipu_config._ipus_per_replica < 2:
        raise _incompatible(ipu_config, "an encoder and a decoder need an IPU each")
    shares = layers_per_ipu(ipu_config, num_encoder_layers + num_decoder_layers)
    cut = _cut(ipu_config, shares, num_encoder_layers)
    encoder, decoder = copy.deepcopy(ipu_config), copy.deepcopy(ipu_config)
    for part, ipus, other_ipus, kept, dropped in (
        (encoder, slice(None, cut), slice(cut, None), "embedding", "projection"),
        (decoder, slice(cut, None), slice(None, cut), "projection", "embedding"),
    ):
        name = f"_serialized_{kept}_splits_per_ipu"
        splits = getattr(ipu_config, name)
        if splits is not None:
            _require_none(ipu_config, name, splits, splits[other_ipus])
            setattr(part, name, splits[ipus])
        setattr(part, f"_serialized_{dropped}_splits_per_ipu", None)
        part._layers_per_ipu = shares[ipus]
        part._ipus_per_replica = len(shares[ipus])
        if isinstance(ipu_config._matmul_proportion, list):
            part._matmul_proportion = ipu_config._matmul_proportion[ipus]
    return encoder, decoder


def _cut(config, shares, encoder_layers):
    """Number of the encoder's IPUs."""
    sums = enumerate(itertools.accumulate(shares), start=1)
    cuts = [ipus for ipus, layers in sums if layers == encoder_layers and ipus & (ipus - 1) == 0]
    if not cuts:
        why = f"no power of two of IPUs, from the first on, has the encoder's {encoder_layers} layers"
        raise _incompatible(config, why)
    return max(cuts)


def _require_none(config, name, splits, elsewhere):
    if any(elsewhere):
        name = config._get_managed_attr_mode_name(name.removeprefix("_"))
        owner = "encoder" if "embedding" in name else "decoder"
        raise refused(ValueError, f"IPUConfig.{name}={splits!r}: all pieces must be on the {owner}'s IPUs")
