"""Which layer runs on which IPU."""

import copy
import itertools
from collections.abc import Sized

from .._errors import refused
from .._native import core
from .config import IncompatibleIPUConfigError, IPUConfig


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
