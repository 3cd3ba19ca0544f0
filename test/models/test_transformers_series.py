"""Classes of transformers for letters, proteins, series of numbers and plays, and translators."""

import pytest
import torch
from test_transformers import DECODER, ENCODER, T5, WORDS, mean_of, tokens, words
from test_transformers_media import WIDTH, row
from walk import Refused, check

SERIES = {"num_input_channels": 3, "context_length": 32, "prediction_length": 8, "patch_length": 8, "d_model": 16}
HALF_DECODER = DECODER | {"head_dim": 8}


def letters(rows):
    return {
        "input_ids": words(rows, 16),
        "attention_mask": torch.ones(rows, 16).long(),
        "labels": torch.randint(2, (rows,)),
    }


def long_text(rows):
    return {**letters(rows), "labels": words(rows, 16)}


def plain_text(rows):
    return {"input_ids": words(rows), "labels": words(rows)}


def translated(rows):
    return {"input_ids": words(rows), "decoder_input_ids": words(rows, 6), "labels": words(rows, 6)}


def series(rows):
    return {"past_values": torch.randn(rows, 32, 3), "future_values": torch.randn(rows, 8, 3)}


def plays(rows):
    return {
        "states": torch.randn(rows, 6, 5),
        "actions": torch.randn(rows, 6, 2),
        "rewards": torch.randn(rows, 6, 1),
        "returns_to_go": torch.randn(rows, 6, 1),
        "timesteps": torch.arange(6).repeat(rows, 1),
        "attention_mask": torch.ones(rows, 6).long(),
    }


ROWS = [
    row(
        "EsmForMaskedLM",
        lambda t: t.EsmConfig(
            **ENCODER | {"pad_token_id": 1}, mask_token_id=4, position_embedding_type="rotary", token_dropout=True
        ),
        tokens,
        2,
    ),
    row(
        "CanineForSequenceClassification",
        lambda t: t.CanineConfig(
            **WIDTH, max_position_embeddings=64, local_transformer_stride=16, downsampling_rate=4, num_hash_buckets=64
        ),
        letters,
        2,
    ),
    row(
        "FunnelForMaskedLM",
        lambda t: t.FunnelConfig(
            vocab_size=WORDS, block_sizes=[1, 1], num_decoder_layers=1, d_model=32, n_head=4, d_head=8, d_inner=48
        ),
        long_text,
        2,
    ),
    row(
        "PatchTSTForPrediction",
        lambda t: t.PatchTSTConfig(**SERIES, patch_stride=4, num_attention_heads=2, num_hidden_layers=2, ffn_dim=24),
        series,
        2,
        labels=("future_values",),
    ),
    row(
        "PatchTSMixerForPrediction",
        lambda t: t.PatchTSMixerConfig(**SERIES, patch_stride=8, num_layers=2),
        series,
        2,
        labels=("future_values",),
    ),
    row(
        "DecisionTransformerModel",
        lambda t: t.DecisionTransformerConfig(
            state_dim=5, act_dim=2, hidden_size=32, max_ep_len=30, n_layer=2, n_head=4
        ),
        plays,
        2,
        loss=mean_of("action_preds"),
    ),
    row(
        "RwkvForCausalLM",
        lambda t: t.RwkvConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_hidden_layers=2,
            context_length=32,
            intermediate_size=48,
            use_cache=False,
        ),
        plain_text,
        2,
    ),
    row(
        "T5GemmaForConditionalGeneration",
        lambda t: t.T5GemmaConfig(encoder=HALF_DECODER, decoder=HALF_DECODER, vocab_size=WORDS),
        translated,
        2,
    ),
    row(
        "SwitchTransformersForConditionalGeneration",
        lambda t: t.SwitchTransformersConfig(
            **T5, num_decoder_layers=2, num_experts=3, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1
        ),
        translated,
        2,
        **dict.fromkeys(
            ("training", "inference"),
            Refused("E0101", "runs the experts that words were sent to, so the values decide"),
        ),
    ),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("transformers")
    check(row, mode)
