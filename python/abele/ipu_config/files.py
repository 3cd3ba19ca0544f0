"""IPUConfig as JSON: the files `ipu_config.json` that models are published with."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping
from typing import Any, Self

from .._errors import Error, refused
from .._native import core
from .._whole_files import read_text

_HUB_ARGUMENTS = frozenset(
    ("cache_dir", "force_download", "local_files_only", "proxies", "resume_download", "revision", "token")
)


class ConfigFiles:
    """The methods of IPUConfig for files, dicts and texts."""

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
