"""Embeddings and projections that are computed in pieces."""

from collections.abc import Sequence
from typing import Self

import torch

from .._errors import refused
from .._logging import logger
from ..annotations import BeginBlock
from ..enums import MatMulSerializationMode
from ..ops import serializedMatMul


def _place_pieces(pieces, splits_per_ipu, name):
    """Begins a block at the first piece on each IPU. splits_per_ipu: as [3, 1, 0, 0]."""
    if sum(splits_per_ipu) != len(pieces):
        raise refused(ValueError, f"{splits_per_ipu!r} places {sum(splits_per_ipu)} pieces of {len(pieces)}")
    first = 0
    for ipu, number in enumerate(splits_per_ipu):
        if number:
            last = first + number - 1
            which = str(first) if first == last else f"{first}-{last}"
            logger.info("%s splits: %s --> IPU %d", name, which, ipu)
            BeginBlock(pieces[first], f"{name}-{which}", ipu_id=ipu)
            first += number


class SerializedEmbedding(torch.nn.Module):
    """An embedding in pieces of equal size. The pieces are looked up one after the other and added: the values and
    gradients are the same.

    Args:
        embedding: a torch.nn.Embedding.
        serialization_factor: number of pieces, a divisor of num_embeddings.
    Raises:
        AssertionError: the factor is not a divisor.
    """

    def __init__(self, embedding: torch.nn.Embedding, serialization_factor: int) -> None:
        super().__init__()
        rows = embedding.num_embeddings
        if not (serialization_factor > 0 and rows % serialization_factor == 0):
            raise refused(
                AssertionError, f"an embedding of {rows} rows cannot be cut into {serialization_factor} equal pieces"
            )
        self.serialization_factor = serialization_factor
        self.num_embeddings = rows
        self.split_size = rows // serialization_factor
        self.padding_idx = embedding.padding_idx
        self.split_embeddings = torch.nn.ModuleList(
            self._piece(embedding, index * self.split_size) for index in range(serialization_factor)
        )

    def _piece(self, embedding, begin):
        padding = None if self.padding_idx is None else self.padding_idx - begin
        return torch.nn.Embedding.from_pretrained(
            embedding.weight[begin : begin + self.split_size].detach().clone(),
            freeze=not embedding.weight.requires_grad,
            padding_idx=padding if padding is not None and 0 <= padding < self.split_size else None,
        )

    @classmethod
    def from_model(cls, embedding: torch.nn.Embedding, serialization_factor: int) -> Self:
        """Calls the constructor."""
        return cls(embedding, serialization_factor)

    def to_model(self) -> torch.nn.Embedding:
        """Returns: one torch.nn.Embedding with the weights of the pieces."""
        weights = [piece.weight.detach() for piece in self.split_embeddings]
        freeze = not self.split_embeddings[0].weight.requires_grad
        return torch.nn.Embedding.from_pretrained(torch.cat(weights), freeze=freeze, padding_idx=self.padding_idx)

    def parallelize(self, splits_per_ipu: Sequence[int]) -> Self:
        """Places the pieces: [3, 1, 0, 0] puts three on IPU 0 and one on IPU 1. Returns: the module."""
        _place_pieces(self.split_embeddings, splits_per_ipu, "Embedding")
        return self

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        result = None
        last = self.serialization_factor - 1
        for number, piece in enumerate(self.split_embeddings):
            local = indices - number * self.split_size
            elsewhere = torch.zeros_like(local, dtype=torch.bool)  # an index beyond both ends fails in the piece itself
            if number > 0:
                elsewhere = elsewhere | (local < 0)
            if number < last:
                elsewhere = elsewhere | (local >= self.split_size)
            rows = piece(local.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0)
            result = rows if result is None else result + rows
        return result


class SerializedLinear(torch.nn.Linear):
    """A linear layer whose product is computed in pieces (serializedMatMul).

    Args:
        in_features, out_features, bias: as for torch.nn.Linear; but bias is False by default.
        factor: number of pieces.
        mode: poptorch.MatMulSerializationMode: the dimension to cut.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        factor: int,
        bias: bool = False,
        mode: MatMulSerializationMode = MatMulSerializationMode.OutputChannels,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.factor, self.mode = factor, mode

    @classmethod
    def from_model(
        cls,
        model: torch.nn.Linear,
        factor: int,
        mode: MatMulSerializationMode = MatMulSerializationMode.OutputChannels,
    ) -> Self:
        """A serialized layer with copies of a torch.nn.Linear's weights."""
        result = cls(model.in_features, model.out_features, factor, model.bias is not None, mode)
        return _with_weights_of(result, model)

    def to_model(self) -> torch.nn.Linear:
        """Returns: a torch.nn.Linear with copies of the weights."""
        return _with_weights_of(torch.nn.Linear(self.in_features, self.out_features, self.bias is not None), self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        factor = 0 if self.mode is MatMulSerializationMode.Disabled else self.factor
        result = serializedMatMul(x, self.weight.t(), self.mode, factor)
        return result if self.bias is None else result + self.bias

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, factor={self.factor}, mode={self.mode.name}"


def _with_weights_of(layer, model):
    """`layer` with copies of another linear layer's parameters, and its mode."""
    layer.to(device=model.weight.device, dtype=model.weight.dtype)
    layer.load_state_dict(model.state_dict())
    for ours, theirs in zip(layer.parameters(), model.parameters(), strict=True):
        ours.requires_grad_(theirs.requires_grad)
    return layer.train(model.training)


class SplitProjection(torch.nn.Module):
    """A linear layer as several linear layers of equal size, which can be placed one by one.

    Args:
        linear: a torch.nn.Linear.
        serialization_factor: number of pieces, a divisor of the dimension that is cut.
        serialization_mode: MatMulSerializationMode.OutputChannels (cuts out_features: the same values) or ReducingDim
            (cuts in_features: sums of partial sums).
    Raises:
        ValueError: the factor is not a divisor, or another mode.
    """

    def __init__(
        self,
        linear: torch.nn.Linear,
        serialization_factor: int,
        serialization_mode: MatMulSerializationMode = MatMulSerializationMode.OutputChannels,
    ) -> None:
        super().__init__()
        modes = (MatMulSerializationMode.OutputChannels, MatMulSerializationMode.ReducingDim)
        if serialization_mode not in modes:
            raise refused(
                ValueError, f"SplitProjection cuts {modes[0].name} or {modes[1].name}, not {serialization_mode}"
            )
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.serialization_mode = serialization_mode
        size = self.out_features if self._cuts_outputs() else self.in_features
        if serialization_factor < 1 or size % serialization_factor:
            raise refused(ValueError, f"{size} features cannot be cut into {serialization_factor} equal pieces")
        self.split_size = size // serialization_factor
        self.split_linear_layers = torch.nn.ModuleList(
            self._piece(weight, linear) for weight in linear.weight.detach().split(self.split_size, self._dimension())
        )
        bias = linear.bias
        self.bias = None if bias is None else torch.nn.Parameter(bias.detach().clone(), bias.requires_grad)

    def _cuts_outputs(self):
        return self.serialization_mode == MatMulSerializationMode.OutputChannels

    def _dimension(self):
        return 0 if self._cuts_outputs() else 1

    @staticmethod
    def _piece(weight, linear):
        piece = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        piece.weight = torch.nn.Parameter(weight.clone().contiguous(), linear.weight.requires_grad)
        return piece

    @classmethod
    def from_model(
        cls,
        linear: torch.nn.Linear,
        serialization_factor: int,
        serialization_mode: MatMulSerializationMode = MatMulSerializationMode.OutputChannels,
    ) -> Self:
        """Calls the constructor."""
        return cls(linear, serialization_factor, serialization_mode)

    def to_model(self) -> torch.nn.Linear:
        """Returns: one torch.nn.Linear with the weights of the pieces."""
        weight = torch.cat([piece.weight.detach() for piece in self.split_linear_layers], self._dimension())
        layer = torch.nn.Linear(self.in_features, self.out_features, bias=self.bias is not None, device="meta")
        layer.weight = torch.nn.Parameter(weight, self.split_linear_layers[0].weight.requires_grad)
        if self.bias is not None:
            layer.bias = torch.nn.Parameter(self.bias.detach().clone(), self.bias.requires_grad)
        return layer

    def parallelize(self, splits_per_ipu: Sequence[int]) -> Self:
        """Places the pieces: [0, 0, 1, 3] puts one on IPU 2 and three on IPU 3. Returns: the module."""
        _place_pieces(self.split_linear_layers, splits_per_ipu, "Linear")
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._cuts_outputs():
            result = torch.cat([piece(x) for piece in self.split_linear_layers], -1)
        else:
            parts = x.split(self.split_size, -1)
            result = sum(
                (piece(part) for piece, part in zip(self.split_linear_layers[1:], parts[1:], strict=True)),
                start=self.split_linear_layers[0](parts[0]),
            )
        return result if self.bias is None else result + self.bias


class SharedEmbedding(torch.nn.Module):
    """One embedding for the encoder's and the decoder's words, looked up once for both.

    Args:
        shared: a torch.nn.Embedding.
    """

    def __init__(self, shared: torch.nn.Embedding) -> None:
        super().__init__()
        self.shared = shared

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        decoder_input_ids: torch.Tensor | None = None,
        encoder_embed_scale: float | None = None,
        decoder_embed_scale: float | None = None,
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Returns: (embeddings of input_ids, embeddings of decoder_input_ids), scaled; None for ids that are None."""
        ids = [i for i in (input_ids, decoder_input_ids) if i is not None]
        if not ids:
            raise refused(ValueError, "SharedEmbedding needs input_ids, decoder_input_ids or both")
        rows = iter(self.shared(torch.cat(ids, dim=1)).split([i.shape[1] for i in ids], dim=1))
        encoder = None if input_ids is None else next(rows)
        decoder = None if decoder_input_ids is None else next(rows)
        if encoder is not None and encoder_embed_scale:
            encoder = encoder * encoder_embed_scale
        if decoder is not None and decoder_embed_scale:
            decoder = decoder * decoder_embed_scale
        return encoder, decoder


class OnehotGather(torch.nn.Module):
    """Rows of a batch of sequences, as the product with a one-hot matrix."""

    def forward(self, sequence: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """sequence: [batch, length, features]; positions: integers [batch, n]. Returns: [batch, n, features]."""
        chosen = torch.nn.functional.one_hot(positions.long(), sequence.shape[1])
        return torch.matmul(chosen.to(sequence.dtype), sequence)
