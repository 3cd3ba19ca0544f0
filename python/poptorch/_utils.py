"""See _library_names.py."""

from abele.annotations import ATTR_PREFIX
from abele.structures import flattenTensorStructure, reconstructTensorStructure

from ._library_names import combine_batch_tensors_gen, custom_arg_parsers, getCustomParser, isOnIpu

__all__ = [
    "ATTR_PREFIX",
    "combine_batch_tensors_gen",
    "custom_arg_parsers",
    "flattenTensorStructure",
    "getCustomParser",
    "isOnIpu",
    "reconstructTensorStructure",
]
