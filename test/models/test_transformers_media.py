"""More classes of transformers, tiny and with random weights: images with words, sounds, films, series of numbers."""

import pytest
import torch
from test_transformers import (
    DECODER,
    ENCODER,
    SEQ2SEQ,
    SPEECH,
    STAGED,
    WORDS,
    images,
    mean_of,
    pairs,
    text,
    words,
)
from walk import Row, check

WIDTH = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
VISION = WIDTH | {"image_size": 32, "patch_size": 8}
READER = WIDTH | {"vocab_size": WORDS, "max_position_embeddings": 40}
IMAGE_WORD = 90


def row(name, configure, batch, stages, **options):
    """configure: of the module transformers, to the configuration."""

    def make():
        import transformers

        return getattr(transformers, name)(configure(transformers))

    return Row(name, make, batch, stages, **options)


def in_words(pieces):
    """Sentences in which so many words stand for the pieces of an image."""

    def batch(rows):
        ids = torch.randint(3, 80, (rows, pieces + 10))
        ids[:, 2 : 2 + pieces] = IMAGE_WORD
        labels = torch.randint(3, 80, (rows, pieces + 10))
        return {"input_ids": ids, "pixel_values": torch.randn(rows, 3, 32, 32), "labels": labels}

    return batch


def prefixed(rows):
    batch = in_words(16)(rows)
    kinds = torch.cat([torch.zeros(rows, 18), torch.ones(rows, 8)], 1).long()
    return {**batch, "attention_mask": torch.ones_like(batch["input_ids"]), "token_type_ids": kinds}


def described(rows):
    return {"pixel_values": torch.randn(rows, 3, 32, 32), "input_ids": words(rows), "labels": words(rows)}


def asked(rows):
    return {**text(rows), "pixel_values": torch.randn(rows, 3, 32, 32), "labels": torch.rand(rows, 4)}


def outlined(rows):
    return {**text(rows), "pixel_values": torch.randn(rows, 3, 32, 32), "labels": torch.rand(rows, 32, 32)}


def pieces(rows):
    return {
        "input_ids": words(rows),
        "pixel_values": torch.randn(rows, 16, 48),
        "pixel_attention_mask": torch.ones(rows, 16).long(),
        "spatial_shapes": torch.full((rows, 2), 4),
    }


def grounded(rows):
    return {
        "pixel_values": torch.randn(rows, 3, 32, 32),
        "input_ids": torch.randint(3, 80, (rows, 12)),
        "image_embeds_position_mask": torch.tensor([[0, 1, 1, 1, 1] + [0] * 7] * rows),
    }


def sounds(rows):
    return {"input_values": torch.randn(rows, 400), "labels": torch.randint(2, (rows,))}


def wave(rows):
    return {"input_values": torch.randn(rows, 1, 256)}


def masked_wave(rows):
    return {**wave(rows), "padding_mask": torch.ones(rows, 256).bool()}


def spoken(rows, length=400):
    return {"input_values": torch.randn(rows, length), "decoder_input_ids": words(rows, 6), "labels": words(rows, 6)}


def features(rows):
    return {"input_features": torch.randn(rows, 20, 16), "labels": torch.randint(2, (rows,))}


def bands(rows):
    return {
        "input_features": torch.randn(rows, 40, 8),
        "decoder_input_ids": words(rows, 6),
        "labels": words(rows, 6),
    }


def pixels(size):
    return lambda rows: {"pixel_values": torch.randn(rows, 3, size, size)}


def film(rows):
    return {"pixel_values": torch.randn(rows, 4, 3, 32, 32), "labels": torch.randint(2, (rows,))}


def plain_film(rows):
    return {"pixel_values_videos": torch.randn(rows, 4, 3, 32, 32)}


def boxes(result, batch):
    return result["logits"].square().mean() + result["pred_boxes"].square().mean()


def heard(result, batch):
    return result["audio_values"].square().mean()


HALF_DECODER = DECODER | {"head_dim": 8}

ROWS = [
    # Images and words.
    row(
        "LlavaForConditionalGeneration",
        lambda t: t.LlavaConfig(
            vision_config=t.CLIPVisionConfig(**VISION),
            text_config=t.LlamaConfig(**DECODER),
            image_token_index=IMAGE_WORD,
        ),
        in_words(16),
        3,
    ),
    row(
        "PaliGemmaForConditionalGeneration",
        lambda t: t.PaliGemmaConfig(
            vision_config=t.SiglipVisionConfig(**VISION),
            text_config=t.GemmaConfig(**HALF_DECODER),
            image_token_index=IMAGE_WORD,
            projection_dim=32,
            hidden_size=32,
        ),
        prefixed,
        3,
    ),
    row(
        "InternVLForConditionalGeneration",
        lambda t: t.InternVLConfig(
            vision_config=VISION | {"image_size": [32, 32], "patch_size": [8, 8]},
            text_config=t.Qwen2Config(**DECODER),
            image_token_id=IMAGE_WORD,
            downsample_ratio=0.5,
        ),
        in_words(4),
        2,
    ),
    row(
        "BlipForConditionalGeneration",
        lambda t: t.BlipConfig(
            vision_config=VISION,
            text_config=READER
            | {"encoder_hidden_size": 32, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 2, "pad_token_id": 0},
            projection_dim=16,
        ),
        described,
        2,
    ),
    row(
        "GitForCausalLM",
        lambda t: t.GitConfig(vision_config=VISION, **ENCODER, bos_token_id=1, eos_token_id=2),
        described,
        2,
    ),
    row(
        "ViltForQuestionAnswering",
        lambda t: t.ViltConfig(**ENCODER, image_size=32, patch_size=8, num_labels=4),
        asked,
        2,
    ),
    row(
        "AltCLIPModel",
        lambda t: t.AltCLIPConfig(text_config=ENCODER | {"project_dim": 16}, vision_config=VISION, projection_dim=16),
        pairs,
        2,
        loss=mean_of("logits_per_image"),
    ),
    row(
        "CLIPSegForImageSegmentation",
        lambda t: t.CLIPSegConfig(
            text_config=READER | {"eos_token_id": 2},
            vision_config=VISION | {"num_hidden_layers": 3},
            projection_dim=16,
            extract_layers=[0, 1],
            reduce_dim=16,
            decoder_num_attention_heads=2,
            decoder_intermediate_size=24,
        ),
        outlined,
        2,
    ),
    row(
        "Siglip2Model",
        lambda t: t.Siglip2Config(text_config=READER, vision_config=WIDTH | {"num_patches": 16, "patch_size": 4}),
        pieces,
        2,
        loss=mean_of("logits_per_image"),
    ),
    row(
        "Aimv2Model",
        lambda t: t.Aimv2Config(text_config=READER | {"eos_token_id": 2}, vision_config=VISION, projection_dim=16),
        pairs,
        2,
        loss=mean_of("logits_per_image"),
    ),
    row(
        "Kosmos2Model",
        lambda t: t.Kosmos2Config(
            text_config={
                "vocab_size": WORDS,
                "embed_dim": 32,
                "layers": 2,
                "ffn_dim": 48,
                "attention_heads": 4,
                "max_position_embeddings": 64,
            },
            vision_config=VISION,
            latent_query_num=4,
        ),
        grounded,
        2,
        loss=mean_of("last_hidden_state"),
    ),
    # Sounds.
    row("WavLMForSequenceClassification", lambda t: t.WavLMConfig(**SPEECH), sounds, 3),
    row(
        "Data2VecAudioForSequenceClassification",
        lambda t: t.Data2VecAudioConfig(**SPEECH, conv_pos_kernel_size=5),
        sounds,
        2,
    ),
    row("SEWForSequenceClassification", lambda t: t.SEWConfig(**SPEECH, squeeze_factor=2), sounds, 2),
    row("UniSpeechSatForSequenceClassification", lambda t: t.UniSpeechSatConfig(**SPEECH), sounds, 2),
    row(
        "Wav2Vec2ConformerForSequenceClassification",
        lambda t: t.Wav2Vec2ConformerConfig(**SPEECH, position_embeddings_type="rotary"),
        sounds,
        3,
    ),
    row(
        "Wav2Vec2BertForSequenceClassification",
        lambda t: t.Wav2Vec2BertConfig(
            **WIDTH, feature_projection_input_dim=16, mask_time_prob=0.0, layerdrop=0.0, vocab_size=WORDS
        ),
        features,
        2,
    ),
    row(
        "MoonshineForConditionalGeneration",
        lambda t: t.MoonshineConfig(
            vocab_size=WORDS,
            hidden_size=32,
            intermediate_size=48,
            encoder_num_hidden_layers=2,
            decoder_num_hidden_layers=2,
            encoder_num_attention_heads=4,
            decoder_num_attention_heads=4,
            max_position_embeddings=64,
            decoder_start_token_id=1,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            use_cache=False,
        ),
        lambda rows: spoken(rows, 4000),
        2,
    ),
    row(
        "SpeechT5ForSpeechToText",
        lambda t: t.SpeechT5Config(
            **{name: SEQ2SEQ[name] for name in SEQ2SEQ if name not in ("d_model", "max_position_embeddings")},
            hidden_size=32,
            **{name: SPEECH[name] for name in SPEECH if name.startswith(("conv_", "num_conv_pos"))},
            apply_spec_augment=False,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
        ),
        spoken,
        2,
    ),
    row(
        "Speech2TextForConditionalGeneration",
        lambda t: t.Speech2TextConfig(
            **{name: SEQ2SEQ[name] for name in SEQ2SEQ if name != "max_position_embeddings"},
            max_source_positions=60,
            max_target_positions=40,
            input_feat_per_channel=8,
            conv_channels=16,
            encoder_layerdrop=0.0,
            decoder_layerdrop=0.0,
        ),
        bands,
        2,
    ),
    row(
        "EncodecModel",
        lambda t: t.EncodecConfig(
            num_filters=4,
            hidden_size=8,
            codebook_size=16,
            upsampling_ratios=[4, 2],
            num_lstm_layers=1,
            target_bandwidths=[1.5],
            sampling_rate=800,
            use_causal_conv=True,
        ),
        masked_wave,
        2,
        loss=heard,
    ),
    row(
        "DacModel",
        lambda t: t.DacConfig(
            encoder_hidden_size=8,
            downsampling_ratios=[2, 2],
            decoder_hidden_size=16,
            n_codebooks=2,
            codebook_size=16,
            codebook_dim=4,
            hidden_size=16,
        ),
        wave,
        2,
        loss=lambda result, batch: heard(result, batch) + result["loss"].mean(),
    ),
    # Images and films.
    row(
        "DINOv3ViTModel",
        lambda t: t.DINOv3ViTConfig(**VISION | {"num_hidden_layers": 3}, num_register_tokens=2),
        pixels(32),
        3,
        loss=mean_of("last_hidden_state"),
    ),
    row(
        "VideoMAEForVideoClassification",
        lambda t: t.VideoMAEConfig(**VISION, num_frames=4, tubelet_size=2),
        film,
        2,
    ),
    row("TimesformerForVideoClassification", lambda t: t.TimesformerConfig(**VISION, num_frames=4), film, 2),
    row(
        "VJEPA2Model",
        lambda t: t.VJEPA2Config(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            crop_size=32,
            patch_size=8,
            frames_per_clip=4,
            tubelet_size=2,
            pred_hidden_size=24,
            pred_num_attention_heads=2,
            pred_num_hidden_layers=2,
        ),
        plain_film,
        2,
        loss=mean_of("last_hidden_state"),
    ),
    row(
        "HieraForImageClassification",
        lambda t: t.HieraConfig(
            embed_dim=8,
            image_size=[64, 64],
            patch_size=[7, 7],
            patch_stride=[4, 4],
            patch_padding=[3, 3],
            depths=[1, 1, 1, 1],
            num_heads=[1, 2, 4, 8],
            query_stride=[2, 2],
        ),
        lambda rows: images(rows, 64),
        2,
    ),
    row(
        "EfficientNetForImageClassification",
        lambda t: t.EfficientNetConfig(width_coefficient=0.2, depth_coefficient=0.3, image_size=64, hidden_dim=256),
        lambda rows: images(rows, 64),
        3,
    ),
    row(
        "FocalNetForImageClassification",
        lambda t: t.FocalNetConfig(
            image_size=32,
            patch_size=4,
            embed_dim=8,
            depths=[1, 1, 1, 1],
            hidden_sizes=[8, 16, 32, 64],
            focal_levels=[1, 1, 1, 1],
        ),
        images,
        2,
    ),
    row(
        "PvtV2ForImageClassification",
        lambda t: t.PvtV2Config(
            image_size=64, hidden_sizes=STAGED["hidden_sizes"], depths=[1] * 4, num_attention_heads=[1, 2, 3, 4]
        ),
        lambda rows: images(rows, 64),
        2,
    ),
    row(
        "DepthAnythingForDepthEstimation",
        lambda t: t.DepthAnythingConfig(
            backbone_config=t.Dinov2Config(
                **WIDTH | {"num_hidden_layers": 4},
                image_size=56,
                patch_size=14,
                out_features=["stage1", "stage2", "stage3", "stage4"],
                reshape_hidden_states=False,
            ),
            reassemble_hidden_size=32,
            patch_size=14,
            neck_hidden_sizes=[8] * 4,
            fusion_hidden_size=8,
            head_hidden_size=8,
        ),
        pixels(56),
        3,
        loss=mean_of("predicted_depth"),
    ),
    row(
        "RTDetrForObjectDetection",
        lambda t: t.RTDetrConfig(
            backbone_config=t.RTDetrResNetConfig(
                embedding_size=8,
                hidden_sizes=[8, 8, 16, 16],
                depths=[1, 1, 1, 1],
                layer_type="basic",
                out_features=["stage2", "stage3", "stage4"],
            ),
            encoder_hidden_dim=32,
            encoder_in_channels=[8, 16, 16],
            encoder_ffn_dim=32,
            encoder_attention_heads=2,
            d_model=32,
            num_queries=10,
            decoder_in_channels=[32, 32, 32],
            decoder_ffn_dim=32,
            decoder_layers=2,
            decoder_attention_heads=2,
            num_denoising=0,
            feat_strides=[8, 16, 32],
            hidden_expansion=0.5,
        ),
        pixels(64),
        2,
        loss=boxes,
    ),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("transformers")
    check(row, mode)
