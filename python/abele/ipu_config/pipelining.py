"""Models that have an IPUConfig and can be turned into a pipeline and back.

Source: the documents' parallelize() of GroupBERT.
"""

import copy
from collections.abc import Callable
from typing import Any, Self, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from .._errors import refused
from .._logging import logger
from ..annotations import Attribute, BeginBlock, removeBlocks
from ..ops import recomputationCheckpoint
from .config import IPUConfig, get_layer_ipu
from .modules import SerializedEmbedding, SerializedLinear, SplitProjection

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


class PipelinedBertMixin(PipelineMixin):
    """The pipeline of GroupBERT, and of models with `bert.embeddings` (with `word_embeddings`, `LayerNorm`) and
    `bert.encoder.layer`. Optional: `cls` (for a language model's head, `cls.predictions.decoder`), `bert.pooler` and
    `tie_weights()`.

        class Pipelined(PipelinedBertMixin, GroupBertForMaskedLM): pass
    """

    def parallelize(self) -> Self:
        """Turns the model into a pipeline: embeddings and head on IPU 0, the layers as layers_per_ipu says.

        If the config says so, the projection onto the words becomes a SerializedLinear (a factor) or a SplitProjection
        (splits), the word embeddings become a SerializedEmbedding (splits), and the outputs of layers are kept for
        backward.

        Returns: the model.
        Raises:
            IncompatibleIPUConfigError: layers_per_ipu does not fit the model.
            ValueError: splits of a layer that shares its weights with another layer.
        """
        super().parallelize()
        layer_ipu = get_layer_ipu(self.ipu_config, self.bert.encoder.layer)
        self._require_untied_pieces()
        self._serialize_projection()
        logger.info("-------------------- Device Allocation --------------------")
        self._place_embeddings()
        self._hooks.extend(outline_attribute(self.bert.embeddings.LayerNorm, "embeddings"))
        for index, (layer, ipu) in enumerate(zip(self.bert.encoder.layer, layer_ipu, strict=True)):
            if self.ipu_config.recompute_checkpoint_every_layer:
                self._hooks.append(recomputation_checkpoint(layer))
            self._begin(layer, f"Encoder{index}", f"Encoder {index:<2}", ipu)
        if getattr(self.bert, "pooler", None) is not None:
            self._begin(self.bert.pooler, "Pooler", "Pooler    ", 0)
        self._begin(self.cls, "Classifier", "Classifier", 0)
        self._place_projection()
        logger.info("-----------------------------------------------------------")
        return self

    def deparallelize(self) -> Self:
        """Restores the plain model. Returns: the model."""
        super().deparallelize()
        embeddings = self.bert.embeddings
        if isinstance(embeddings.word_embeddings, SerializedEmbedding):
            embeddings.word_embeddings = embeddings.word_embeddings.to_model()
        decoder = self._decoder()
        if isinstance(decoder, (SerializedLinear, SplitProjection)):
            self._replace_decoder(decoder.to_model())
            self._tie()
        return self

    @staticmethod
    def _begin(module, block, text, ipu):
        BeginBlock(module, block, ipu_id=ipu)
        logger.info("%s --> IPU %d", text, ipu)

    def _decoder(self):
        predictions = getattr(self.cls, "predictions", None)
        return getattr(predictions, "decoder", None)

    def _replace_decoder(self, layer):
        """Replaces the decoder by a layer. Parameters that other modules hold too stay the same objects."""
        decoder = self._decoder()
        self.cls.predictions.decoder = layer
        held = {id(parameter) for parameter in self.parameters()}
        for name, parameter in decoder.named_parameters(recurse=False):
            if id(parameter) in held and name in layer._parameters:
                setattr(layer, name, parameter)

    def _tie(self):
        if hasattr(self, "tie_weights"):
            self.tie_weights()

    def _require_untied_pieces(self):
        config, decoder = self.ipu_config, self._decoder()
        placed = config._serialized_projection_splits_per_ipu or config._serialized_embedding_splits_per_ipu
        if placed and decoder is not None and decoder.weight is self.bert.embeddings.word_embeddings.weight:
            raise refused(
                ValueError,
                "the projection's weights are the word embeddings': their pieces cannot be placed one by one; use "
                "projection_serialization_factor, or untie them",
            )

    def _serialize_projection(self):
        config, decoder = self.ipu_config, self._decoder()
        splits = config._serialized_projection_splits_per_ipu
        factor = max(config._projection_serialization_factor or 1, config._embedding_serialization_factor or 1)
        if decoder is None or (splits is None and factor == 1):
            return
        if splits:
            self._replace_decoder(SplitProjection(decoder, sum(splits)))
            return
        self._replace_decoder(SerializedLinear.from_model(decoder, factor))
        self._tie()

    def _place_embeddings(self):
        embeddings, splits = self.bert.embeddings, self.ipu_config._serialized_embedding_splits_per_ipu
        self._begin(embeddings, "Embedding", "Embedding ", 0)
        if splits:
            embeddings.word_embeddings = SerializedEmbedding(embeddings.word_embeddings, sum(splits))
            embeddings.word_embeddings.parallelize(splits)

    def _place_projection(self):
        if isinstance(self._decoder(), SplitProjection):
            self._decoder().parallelize(self.ipu_config._serialized_projection_splits_per_ipu)
