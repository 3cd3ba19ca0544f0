"""Classes of transformers that read pictures or sounds together with words, tiny and with random weights."""

import pytest
import torch
from test_transformers import DECODER, WORDS, words
from test_transformers_media import IMAGE_WORD, VISION, row
from walk import check

FILM_WORD, BEGIN, END = 93, 91, 92
TURNED = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}}
HALF_TURNED = {
    "rope_parameters": {**TURNED["rope_parameters"], "mrope_section": [1, 0, 1], "partial_rotary_factor": 0.5}
}
QWEN = {
    "image_token_id": IMAGE_WORD,
    "video_token_id": FILM_WORD,
    "vision_start_token_id": BEGIN,
    "vision_end_token_id": END,
}
GRID = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 1}
WIDE_GRID = {**GRID, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 32}
QUERIES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": WORDS,
    "encoder_hidden_size": 32,
    "max_position_embeddings": 40,
}
OPT = {
    "model_type": "opt",
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 48,
    "max_position_embeddings": 40,
    "word_embed_proj_dim": 32,
    "use_cache": False,
}
BART = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    "vocab_size": WORDS,
    "d_model": 32,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "use_cache": False,
}


def sentences(rows, pieces):
    """Words in which so many stand for the pieces of a picture."""
    ids = torch.randint(3, 80, (rows, pieces + 8))
    ids[:, 2], ids[:, 3 : 3 + pieces], ids[:, 3 + pieces] = BEGIN, IMAGE_WORD, END
    labels = torch.randint(3, 80, ids.shape)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}


def with_pictures(pieces, *shape):
    return lambda rows: {**sentences(rows, pieces), "pixel_values": torch.randn(rows, *shape)}


def with_sizes(pieces, *shape):
    sizes = lambda rows: torch.full((rows, 2), shape[-1])  # noqa: E731
    return lambda rows: {**with_pictures(pieces, *shape)(rows), "image_sizes": sizes(rows)}


def with_grids(rows):
    """Pictures of 4 x 4 patches, of which 2 x 2 become one word."""
    batch = sentences(rows, 4)
    return {
        **batch,
        "pixel_values": torch.randn(rows * 16, 48),
        "image_grid_thw": torch.tensor([[1, 4, 4]] * rows),
        "mm_token_type_ids": (batch["input_ids"] == IMAGE_WORD).long(),
    }


def with_kinds(rows):
    batch = with_pictures(4, 3, 32, 32)(rows)
    return {**batch, "token_type_ids": (batch["input_ids"] == IMAGE_WORD).long()}


def with_questions(rows):
    return {**with_pictures(4, 3, 32, 32)(rows), "qformer_input_ids": words(rows, 6)}


def with_sounds(pieces, masked):
    def batch(rows):
        mask = {"feature_attention_mask": torch.ones(rows, 40).long()} if masked else {}
        return {**sentences(rows, pieces), "input_features": torch.randn(rows, 8, 40), **mask}

    return batch


def described(rows):
    batch = with_pictures(5, 3, 32, 32)(rows)
    return {"input_ids": batch["input_ids"], "pixel_values": batch["pixel_values"], "labels": words(rows, 6)}


ROWS = [
    row(
        "Qwen2VLForConditionalGeneration",
        lambda t: t.Qwen2VLConfig(
            text_config=DECODER | TURNED, vision_config=GRID | {"embed_dim": 32, "hidden_size": 32}, **QWEN
        ),
        with_grids,
        2,
    ),
    row(
        "Qwen2_5_VLForConditionalGeneration",
        lambda t: t.Qwen2_5_VLConfig(
            text_config=DECODER | TURNED,
            vision_config=WIDE_GRID | {"window_size": 16, "fullatt_block_indexes": [1]},
            **QWEN,
        ),
        with_grids,
        3,
    ),
    row(
        "Qwen3VLForConditionalGeneration",
        lambda t: t.Qwen3VLConfig(
            text_config=DECODER | TURNED | {"head_dim": 8},
            vision_config=WIDE_GRID | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
            **QWEN,
        ),
        with_grids,
        2,
    ),
    row(
        "Glm4vForConditionalGeneration",
        lambda t: t.Glm4vConfig(
            text_config=DECODER | HALF_TURNED,
            vision_config=WIDE_GRID | {"image_size": 16},
            image_token_id=IMAGE_WORD,
            video_token_id=FILM_WORD,
            image_start_token_id=BEGIN,
            image_end_token_id=END,
        ),
        with_grids,
        2,
    ),
    row(
        "SmolVLMForConditionalGeneration",
        lambda t: t.SmolVLMConfig(
            vision_config=VISION,
            text_config=DECODER | {"model_type": "llama"},
            image_token_id=IMAGE_WORD,
            scale_factor=2,
        ),
        with_pictures(4, 1, 3, 32, 32),
        2,
        trusts_reads=True,  # it leaves out pictures of zeros
    ),
    row(
        "Idefics3ForConditionalGeneration",
        lambda t: t.Idefics3Config(
            vision_config=VISION,
            text_config=DECODER | {"model_type": "llama"},
            image_token_id=IMAGE_WORD,
            scale_factor=2,
        ),
        with_pictures(4, 1, 3, 32, 32),
        2,
        trusts_reads=True,  # it leaves out pictures of zeros
    ),
    row(
        "Mistral3ForConditionalGeneration",
        lambda t: t.Mistral3Config(
            vision_config=t.PixtralVisionConfig(**VISION),
            text_config=t.MistralConfig(**DECODER),
            image_token_index=IMAGE_WORD,
            spatial_merge_size=2,
        ),
        with_sizes(4, 3, 32, 32),
        2,
    ),
    row(
        "LlavaNextForConditionalGeneration",
        lambda t: t.LlavaNextConfig(
            vision_config=t.CLIPVisionConfig(**VISION),
            text_config=t.LlamaConfig(**DECODER),
            image_token_index=IMAGE_WORD,
            image_grid_pinpoints=[[32, 32]],
        ),
        with_sizes(36, 2, 3, 32, 32),
        2,
    ),
    row(
        "LlavaOnevisionForConditionalGeneration",
        lambda t: t.LlavaOnevisionConfig(
            vision_config=t.SiglipVisionConfig(**VISION),
            text_config=t.Qwen2Config(**DECODER),
            image_token_index=IMAGE_WORD,
            video_token_index=FILM_WORD,
            image_grid_pinpoints=[[32, 32]],
        ),
        with_sizes(36, 2, 3, 32, 32),
        2,
    ),
    row(
        "VipLlavaForConditionalGeneration",
        lambda t: t.VipLlavaConfig(
            vision_config=t.CLIPVisionConfig(**VISION),
            text_config=t.LlamaConfig(**DECODER),
            image_token_index=IMAGE_WORD,
            vision_feature_layers=[-1, -2],
        ),
        with_pictures(16, 3, 32, 32),
        2,
    ),
    row(
        "AyaVisionForConditionalGeneration",
        lambda t: t.AyaVisionConfig(
            vision_config=t.SiglipVisionConfig(**VISION),
            text_config=t.Cohere2Config(**DECODER),
            image_token_index=IMAGE_WORD,
            downsample_factor=2,
            adapter_layer_norm_eps=1e-6,
        ),
        with_pictures(4, 3, 32, 32),
        2,
    ),
    row(
        "Cohere2VisionForConditionalGeneration",
        lambda t: t.Cohere2VisionConfig(
            vision_config=t.SiglipVisionConfig(**VISION),
            text_config=t.Cohere2Config(**DECODER),
            image_token_id=IMAGE_WORD,
            downsample_factor=2,
            alignment_intermediate_size=32,
        ),
        with_pictures(4, 3, 32, 32),
        2,
    ),
    row(
        "Gemma3ForConditionalGeneration",
        lambda t: t.Gemma3Config(
            vision_config=dict(VISION),
            text_config=DECODER | {"head_dim": 8},
            image_token_index=IMAGE_WORD,
            mm_tokens_per_image=4,
            boi_token_index=BEGIN,
            eoi_token_index=END,
        ),
        with_kinds,
        2,
    ),
    row(
        "Ovis2ForConditionalGeneration",
        lambda t: t.Ovis2Config(
            vision_config=VISION | {"hidden_stride": 2, "vocab_size": 32, "num_visual_indicator_tokens": 3},
            text_config=DECODER | {"model_type": "qwen2"},
            image_token_id=IMAGE_WORD,
            visual_indicator_token_ids=[94, 95, 96],
            hidden_size=32,
            vocab_size=WORDS,
        ),
        with_pictures(4, 3, 32, 32),
        2,
    ),
    row(
        "GotOcr2ForConditionalGeneration",
        lambda t: t.GotOcr2Config(
            vision_config={
                "hidden_size": 16,
                "output_channels": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 64,
                "patch_size": 4,
                "mlp_dim": 32,
                "window_size": 4,
                "global_attn_indexes": [1],
                "num_pos_feats": 8,
            },
            text_config=DECODER | {"model_type": "qwen2"},
            image_token_index=IMAGE_WORD,
        ),
        with_pictures(16, 3, 64, 64),
        2,
    ),
    row(
        "Blip2ForConditionalGeneration",
        lambda t: t.Blip2Config(
            vision_config=VISION,
            qformer_config=QUERIES,
            text_config=OPT,
            num_query_tokens=4,
            image_token_index=IMAGE_WORD,
        ),
        with_pictures(4, 3, 32, 32),
        2,
    ),
    row(
        "InstructBlipForConditionalGeneration",
        lambda t: t.InstructBlipConfig(
            vision_config=VISION,
            qformer_config=QUERIES,
            text_config=OPT,
            num_query_tokens=4,
            image_token_index=IMAGE_WORD,
        ),
        with_questions,
        2,
    ),
    row(
        "Florence2ForConditionalGeneration",
        lambda t: t.Florence2Config(
            text_config=t.BartConfig(**BART),
            vision_config={
                "depths": [1, 1, 1, 1],
                "embed_dim": [8, 8, 16, 16],
                "num_heads": [2, 2, 2, 2],
                "num_groups": [2, 2, 2, 2],
                "patch_stride": [4, 2, 2, 1],
                "window_size": 4,
                "projection_dim": 32,
                "drop_path_rate": 0.0,
            },
            image_token_id=IMAGE_WORD,
        ),
        described,
        2,
        labels=(),
    ),
    row(
        "Qwen2AudioForConditionalGeneration",
        lambda t: t.Qwen2AudioConfig(
            audio_config={
                "model_type": "qwen2_audio_encoder",
                "num_mel_bins": 8,
                "encoder_layers": 2,
                "encoder_attention_heads": 4,
                "encoder_ffn_dim": 48,
                "d_model": 32,
                "max_source_positions": 20,
            },
            text_config=DECODER | {"model_type": "qwen2"},
            audio_token_index=IMAGE_WORD,
        ),
        with_sounds(10, masked=True),
        2,
    ),
    row(
        "VoxtralForConditionalGeneration",
        lambda t: t.VoxtralConfig(
            audio_config={
                "hidden_size": 32,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_mel_bins": 8,
                "max_source_positions": 20,
            },
            text_config=DECODER | {"model_type": "llama", "head_dim": 8},
            audio_token_id=IMAGE_WORD,
        ),
        with_sounds(5, masked=False),
        2,
    ),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("transformers")
    check(row, mode)
