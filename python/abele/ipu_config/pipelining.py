"""Models that have an IPUConfig and can be turned into a pipeline and back."""

import copy
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from .._errors import refused
from .._logging import logger
from ..annotations import Attribute, removeBlocks
from ..ops import recomputationCheckpoint
from .config import IPUConfig

_Class = TypeVar("_Class", bound=type)

_registry = {}  # class of a model -> its pipelined class


def recomputation_checkpoint(module: torch.nn.Module) -> RemovableHandle:
    """Keeps the results of a module for backward, even if the config recomputes them.

    Returns: the hook's handle; handle.remove() undoes it.
    """

    def keep(_module, _inputs, outputs):
        if isinstance(outputs, torch.Tensor):
            return recomputationCheckpoint(outputs)
        if isinstance(outputs, (tuple, list)):
            return type(outputs)(keep(_module, _inputs, item) for item in outputs)
        return outputs

    return module.register_forward_hook(keep)


def outline_attribute(module: torch.nn.Module, value: str) -> list[RemovableHandle]:
    """Marks a module's operations for the original's outlining, which shares code between equal marks. A hint.

    Returns: the handles of the two hooks.
    """
    attribute = Attribute(__outline={"layer": value})
    return [
        module.register_forward_pre_hook(lambda *_: attribute.__enter__()),
        module.register_forward_hook(lambda *_: attribute.__exit__(None, None, None)),
    ]


class PipelineMixin:
    """The additions of a pipelined model: an IPUConfig, parallelize() and deparallelize()."""

    @property
    def ipu_config(self) -> IPUConfig:
        """The model's IPUConfig. Raises AttributeError if it was not set, TypeError for another type."""
        config = self.__dict__.get("_ipu_config")
        if config is None:
            raise refused(AttributeError, "the model has no IPUConfig: set its attribute ipu_config")
        return config

    @ipu_config.setter
    def ipu_config(self, value: IPUConfig) -> None:
        if not isinstance(value, IPUConfig):
            raise refused(TypeError, f"ipu_config takes an IPUConfig, got {type(value).__name__}")
        self.__dict__["_ipu_config"] = value

    def parallelize(self) -> Self:
        """Checks that there is a config. A model's class overrides it: calls this one, then begins its blocks.

        Returns: the model.
        """
        _ = self.ipu_config
        self.__dict__["_hooks"] = []
        return self

    def deparallelize(self) -> Self:
        """Removes the blocks and hooks of parallelize(). Then state_dict is the plain model's.

        Returns: the model.
        """
        for hook in self.__dict__.pop("_hooks", ()):
            hook.remove()
        removeBlocks(self)
        return self

    @classmethod
    def from_model(cls, model: torch.nn.Module, ipu_config: IPUConfig | None = None) -> Self:
        """A copy of a model as an object of this class.

        Args:
            ipu_config: default: an IPUConfig of one IPU.
        """
        result = copy.deepcopy(model)
        result.__class__ = cls
        result.ipu_config = IPUConfig() if ipu_config is None else copy.deepcopy(ipu_config)
        return result


def register(model_class: type | None = None) -> Callable[[_Class], _Class]:
    """Decorator of a class with PipelineMixin, which becomes the pipelined form of model_class.

    Args:
        model_class: default: the first base class that is not a mixin.
    Raises:
        ValueError: the class has no such base class.
    """

    def decorate(pipelined_class):
        plain = model_class
        if plain is None:
            bases = [base for base in pipelined_class.__bases__ if not issubclass(base, PipelineMixin)]
            bases = [base for base in bases if base is not object]
            if not bases:
                raise refused(ValueError, f"{pipelined_class.__name__} has no base class that is a model")
            plain = bases[0]
        _registry[plain] = pipelined_class
        return pipelined_class

    return decorate


def to_pipelined(model: torch.nn.Module, ipu_config: IPUConfig, force: bool = False) -> Any:
    """The pipelined form of a model, with the same weights, before parallelize().

    Args:
        model: of a class that register() knows, or one that has PipelineMixin.
        ipu_config: an IPUConfig; copied.
        force: for a model of another class: make a class for it, whose parallelize() begins no blocks.
    Raises:
        KeyError: an unknown class.
    """
    known = _registry.get(type(model))
    if known is None and isinstance(model, PipelineMixin):
        known = type(model)
    if known is None:
        name = type(model).__name__
        if not force:
            raise KeyError(f"no pipelined form of {name} is registered: see abele.ipu_config.register")
        logger.warning("no pipelined form of %s is registered: its parallelize() places nothing", name)
        known = type(f"Pipelined{name}", (PipelineMixin, type(model)), {})
    return known.from_model(model, ipu_config)
