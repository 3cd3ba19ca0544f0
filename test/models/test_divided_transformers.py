"""Classes of transformers on several devices, which share each stage or take micro-batches in turn: dropout on.

The models are larger than those of test_transformers.py, because small operators are not divided.
"""

import pytest
import torch
from test_transformers import row
from walk import check_training

WORDS, LENGTH, CLASSES, IMAGE, BANDS = 256, 32, 10, 64, 16
DROPS = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.1)
LAYERS = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512}
ENCODER = {**LAYERS, **DROPS, "vocab_size": WORDS, "pad_token_id": 0}
DECODER = {
    **LAYERS,
    "vocab_size": WORDS,
    "num_key_value_heads": 2,
    "attention_dropout": 0.1,
    "use_cache": False,
    "pad_token_id": 0,
}
IMAGES = {"image_size": IMAGE, "patch_size": 8, "num_labels": CLASSES}


def words(rows):
    return {name: torch.randint(3, WORDS, (rows, LENGTH)) for name in ("input_ids", "labels")}


def images(rows):
    return {"pixel_values": torch.randn(rows, 3, IMAGE, IMAGE), "labels": torch.randint(CLASSES, (rows,))}


def spectra(rows):
    return {"input_features": torch.randn(rows, BANDS, 2 * LENGTH), "labels": words(rows)["labels"]}


# The class, its settings, what makes a batch.
MODELS = [
    ("BertForMaskedLM", ENCODER, words),
    (
        "DebertaForMaskedLM",
        ENCODER | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": LENGTH},
        words,
    ),
    (
        "GPT2LMHeadModel",
        {"n_embd": 128, "n_layer": 2, "n_head": 4, "vocab_size": WORDS, "n_positions": LENGTH, "use_cache": False},
        words,
    ),
    ("LlamaForCausalLM", DECODER, words),
    ("Qwen2ForCausalLM", DECODER, words),
    ("MistralForCausalLM", DECODER | {"sliding_window": 8}, words),
    ("MixtralForCausalLM", DECODER | {"num_local_experts": 4}, words),
    (
        "T5ForConditionalGeneration",
        {
            "d_model": 128,
            "d_kv": 32,
            "d_ff": 512,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": WORDS,
            "decoder_start_token_id": 0,
            "use_cache": False,
        },
        words,
    ),
    (
        "WhisperForConditionalGeneration",
        {
            **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
            **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
            **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 512),
            **dict.fromkeys(("max_source_positions", "max_target_positions"), LENGTH),
            **dict.fromkeys(("pad_token_id", "decoder_start_token_id"), 0),
            "vocab_size": WORDS,
            "d_model": 128,
            "num_mel_bins": BANDS,
            "dropout": 0.1,
            "use_cache": False,
        },
        spectra,
    ),
    ("ViTForImageClassification", LAYERS | DROPS | IMAGES, images),
    (
        "SwinForImageClassification",
        DROPS | IMAGES | {"patch_size": 4, "embed_dim": 48, "depths": [2, 2], "num_heads": [3, 6], "window_size": 4},
        images,
    ),
    (
        "ConvNextForImageClassification",
        {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 2, 1], "drop_path_rate": 0.1, "num_labels": CLASSES},
        images,
    ),
]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize(("name", "settings", "batch"), MODELS, ids=[name for name, *_ in MODELS])
def test_trains_as_eager(name, settings, batch, devices, stages, monkeypatch):
    pytest.importorskip("transformers")
    model = row(name, settings, batch, stages)
    parts = check_training(model, updates=3, group=devices)
    assert set(parts) == set(range(stages * devices))
    # With failing trials no operator is divided: the same bits, in fewer parts.
    monkeypatch.setenv("ABELE_SHARD_TRIALS", "fail")
    assert len(check_training(model, updates=3, group=devices)) < len(parts)


@pytest.mark.parametrize(("devices", "stages"), [(2, 1), (3, 2)])
@pytest.mark.parametrize(("name", "settings", "batch"), MODELS, ids=[name for name, *_ in MODELS])
def test_trains_as_eager_in_turn(name, settings, batch, devices, stages):
    pytest.importorskip("transformers")
    assert len(check_training(row(name, settings, batch, stages), updates=3, turns=devices)) == stages
