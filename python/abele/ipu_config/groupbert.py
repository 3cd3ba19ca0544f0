"""The pipeline of GroupBERT, and of every model with BERT's structure.

Source: the documents' parallelize() of GroupBERT.
"""

from typing import Self

from .._errors import refused
from .._logging import logger
from ..annotations import BeginBlock
from .layers import get_layer_ipu
from .modules import SerializedEmbedding, SerializedLinear, SplitProjection
from .pipelining import PipelineMixin, outline_attribute, recomputation_checkpoint


class PipelinedBertMixin(PipelineMixin):
    """Pipelines models with `bert.embeddings` (with `word_embeddings`, `LayerNorm`) and `bert.encoder.layer`. Optional:
    `cls` (for a language model's head, `cls.predictions.decoder`), `bert.pooler` and `tie_weights()`.

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
