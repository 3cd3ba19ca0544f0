"""Settings of a pipelined model in one JSON file, and functions that turn a transformer into a pipeline. The interface
is that of optimum-graphcore's `IPUConfig`, without transformers.

    from abele.ipu_config import IPUConfig
    config = IPUConfig(layers_per_ipu=[2, 2], gradient_accumulation_steps=8)
    executor = poptorch.trainingModel(model, config.to_options(), optimizer)
"""

from .._native import start as _start
from .config import IncompatibleIPUConfigError, IPUConfig, get_layer_ipu, split_encoder_decoder_ipu_config
from .modules import OnehotGather, SerializedEmbedding, SerializedLinear, SharedEmbedding, SplitProjection
from .pipelining import (
    PipelinedBertMixin,
    PipelineMixin,
    outline_attribute,
    recomputation_checkpoint,
    register,
    to_pipelined,
)

_start()

IPU_CONFIG_NAME = "ipu_config.json"

__all__ = [
    "IPU_CONFIG_NAME",
    "IPUConfig",
    "IncompatibleIPUConfigError",
    "OnehotGather",
    "PipelineMixin",
    "PipelinedBertMixin",
    "SerializedEmbedding",
    "SerializedLinear",
    "SharedEmbedding",
    "SplitProjection",
    "get_layer_ipu",
    "outline_attribute",
    "recomputation_checkpoint",
    "register",
    "split_encoder_decoder_ipu_config",
    "to_pipelined",
]
