"""Classes of transformers for long texts, sounds, boxes, masks and series, tiny and with random weights."""

import pytest
import torch
from test_transformers import (
    DECODER,
    ENCODER,
    SEQ2SEQ,
    SPEECH,
    T5,
    WORDS,
    mean_of,
    pairs,
    plain_text,
    text,
    tokens,
    words,
)
from test_transformers_media import READER, VISION, boxes, row
from walk import Refused, check

LAYERS = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
DETR = {
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    "encoder_layers": 1,
    "decoder_layers": 2,
    "num_queries": 5,
}
POINTS = {"num_feature_levels": 3, "encoder_n_points": 2, "decoder_n_points": 2}
SWIN = {
    "embed_dim": 8,
    "depths": [1, 1, 1, 1],
    "num_heads": [1, 2, 2, 4],
    "window_size": 2,
    "image_size": 64,
    "patch_size": 4,
    "drop_path_rate": 0.0,
}
SERIES = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 1),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
    **LAYERS,
    "prediction_length": 4,
    "context_length": 8,
    "d_model": 16,
    "lags_sequence": [1, 2],
    "num_time_features": 1,
}
XLSTM = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_heads": 2,
    "use_cache": False,
    "chunk_size": 4,
}
LAGS = Refused("E0101", "shifts a series by the lags that correlate best, so the values decide")
MIXED = ["conv", "full_attention", "conv"]
DURATIONS = Refused("E0101", "sounds last as long as their words are predicted to, so the values decide on a shape")


def backbone(t, *stages):
    return t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1] * 4, out_features=list(stages))


def swin(t, *stages):
    return t.SwinConfig(**SWIN, out_features=list(stages))


def found(t, *stages):
    return {"backbone_config": backbone(t, *stages), "use_timm_backbone": False, "use_pretrained_backbone": False}


def pages(rows):
    places = torch.randint(0, 500, (rows, 12, 1)).expand(rows, 12, 4).contiguous()
    return {**text(rows), "bbox": places, "labels": torch.randint(2, (rows, 12))}


def scans(rows):
    return {**pages(rows), "pixel_values": torch.randn(rows, 3, 32, 32)}


def regions(rows):
    return {**text(rows), "visual_feats": torch.randn(rows, 5, 8), "visual_pos": torch.rand(rows, 5, 4)}


def sounds(rows):
    return {"input_values": torch.randn(rows, 400), "labels": torch.randint(2, (rows,))}


def spoken(rows):
    mask = torch.ones(rows, 80).long()
    labels = torch.randint(1, 19, (rows, 4))
    return {"input_features": torch.randn(rows, 80, 16), "attention_mask": mask, "labels": labels}


def pictures(size):
    return lambda rows: {"pixel_values": torch.randn(rows, 3, size, size)}


def phrases(rows):
    ids = torch.tensor([[2, 5, 6, 22, 7, 8, 22, 9, 22, 3, 0, 0]] * rows)
    return {**text(rows), "input_ids": ids, **pictures(64)(rows)}


def series(rows):
    return {
        "past_values": torch.rand(rows, 10),
        "past_time_features": torch.rand(rows, 10, 1),
        "past_observed_mask": torch.ones(rows, 10),
        "future_values": torch.rand(rows, 4),
        "future_time_features": torch.rand(rows, 4, 1),
    }


def masks(result, batch):
    return result["class_queries_logits"].square().mean() + result["masks_queries_logits"].square().mean()


ROWS = [
    # Translations and summaries; the labels are the decoder's inputs, too.
    row(
        "LongT5ForConditionalGeneration",
        lambda t: t.LongT5Config(**T5, local_radius=3, global_block_size=4, encoder_attention_type="transient-global"),
        plain_text,
        2,
        labels=(),
    ),
    row(
        "LEDForConditionalGeneration",
        lambda t: t.LEDConfig(
            **{name: value for name, value in SEQ2SEQ.items() if name != "max_position_embeddings"},
            **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), 40),
            attention_window=4,
        ),
        plain_text,
        2,
        labels=(),
    ),
    row(
        "ProphetNetForConditionalGeneration",
        lambda t: t.ProphetNetConfig(
            **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), 2),
            **dict.fromkeys(("num_encoder_attention_heads", "num_decoder_attention_heads"), 4),
            **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
            vocab_size=WORDS,
            hidden_size=32,
            num_buckets=8,
            relative_max_distance=16,
            max_position_embeddings=40,
            use_cache=False,
            disable_ngram_loss=True,
        ),
        plain_text,
        2,
        labels=(),
    ),
    row("UMT5ForConditionalGeneration", lambda t: t.UMT5Config(**T5), plain_text, 2, labels=()),
    row("PLBartForConditionalGeneration", lambda t: t.PLBartConfig(**SEQ2SEQ), plain_text, 2, labels=()),
    row("M2M100ForConditionalGeneration", lambda t: t.M2M100Config(**SEQ2SEQ, **LAYERS), plain_text, 2, labels=()),
    row(
        "PegasusXForConditionalGeneration",
        lambda t: t.PegasusXConfig(**SEQ2SEQ, num_global_tokens=4, block_size=4),
        plain_text,
        2,
        labels=(),
    ),
    row(
        "VisionEncoderDecoderModel",
        lambda t: t.VisionEncoderDecoderConfig(
            encoder=t.ViTConfig(**VISION).to_dict(),
            decoder=t.BartConfig(**SEQ2SEQ, is_decoder=True, add_cross_attention=True).to_dict(),
            decoder_start_token_id=2,
            pad_token_id=1,
        ),
        lambda rows: {**pictures(32)(rows), "labels": words(rows, 6)},
        2,
        labels=(),
    ),
    # Encoders.
    row("LongformerForMaskedLM", lambda t: t.LongformerConfig(**ENCODER, attention_window=4), plain_text, 2),
    row("RoFormerForMaskedLM", lambda t: t.RoFormerConfig(**ENCODER, embedding_size=32), tokens, 2),
    row("ConvBertForMaskedLM", lambda t: t.ConvBertConfig(**ENCODER, embedding_size=32), tokens, 3),
    row(
        "MobileBertForMaskedLM",
        lambda t: t.MobileBertConfig(**ENCODER, embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
        tokens,
        2,
    ),
    row("LayoutLMForTokenClassification", lambda t: t.LayoutLMConfig(**ENCODER), pages, 2),
    row(
        "LayoutLMv3ForTokenClassification",
        lambda t: t.LayoutLMv3Config(**ENCODER, input_size=32, patch_size=8, coordinate_size=6, shape_size=4),
        scans,
        2,
    ),
    row(
        "LxmertModel",
        lambda t: t.LxmertConfig(
            vocab_size=WORDS,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=48,
            l_layers=1,
            x_layers=1,
            r_layers=1,
            visual_feat_dim=8,
        ),
        regions,
        2,
        loss=mean_of("pooled_output"),
    ),
    row(
        "FlavaModel",
        lambda t: t.FlavaConfig(image_config=VISION, text_config=READER, multimodal_config=VISION, hidden_size=32),
        pairs,
        2,
        loss=mean_of("multimodal_embeddings"),
    ),
    # Sounds.
    row("UniSpeechForSequenceClassification", lambda t: t.UniSpeechConfig(**SPEECH), sounds, 2),
    row(
        "ParakeetForCTC",
        lambda t: t.ParakeetCTCConfig(
            vocab_size=20,
            pad_token_id=0,
            encoder_config={
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "intermediate_size": 48,
                "num_mel_bins": 16,
                "subsampling_conv_channels": 8,
                "max_position_embeddings": 64,
                "layerdrop": 0.0,
            },
        ),
        spoken,
        2,
    ),
    row(
        "MimiModel",
        lambda t: t.MimiConfig(
            hidden_size=16,
            num_filters=4,
            upsampling_ratios=[4, 2],
            num_quantizers=3,
            codebook_size=16,
            codebook_dim=8,
            vector_quantization_hidden_dimension=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=8,
            intermediate_size=24,
            upsample_groups=16,
            frame_rate=1500,
        ),
        lambda rows: {"input_values": torch.randn(rows, 1, 256)},
        2,
        loss=mean_of("audio_values"),
    ),
    row(
        "VitsModel",
        lambda t: t.VitsConfig(
            vocab_size=WORDS,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            ffn_dim=24,
            flow_size=16,
            spectrogram_bins=9,
            upsample_initial_channel=16,
            upsample_rates=[4, 4],
            upsample_kernel_sizes=[8, 8],
            resblock_kernel_sizes=[3],
            resblock_dilation_sizes=[[1]],
            use_stochastic_duration_prediction=False,
            layerdrop=0.0,
        ),
        lambda rows: {"input_ids": words(rows)},
        2,
        loss=mean_of("waveform"),
        training=DURATIONS,
        inference=DURATIONS,
    ),
    # Boxes and masks.
    row(
        "ConditionalDetrForObjectDetection",
        lambda t: t.ConditionalDetrConfig(**DETR, **found(t, "stage4"), d_model=32),
        pictures(64),
        2,
        loss=boxes,
    ),
    row(
        "DeformableDetrForObjectDetection",
        lambda t: t.DeformableDetrConfig(**DETR, **POINTS, **found(t, "stage2", "stage3", "stage4"), d_model=32),
        pictures(64),
        2,
        loss=boxes,
    ),
    row(
        "DabDetrForObjectDetection",
        lambda t: t.DabDetrConfig(**DETR, **found(t, "stage4"), hidden_size=32),
        pictures(64),
        2,
        loss=boxes,
    ),
    row(
        "GroundingDinoForObjectDetection",
        lambda t: t.GroundingDinoConfig(
            **DETR,
            **POINTS,
            backbone_config=swin(t, "stage2", "stage3", "stage4"),
            text_config=t.BertConfig(**ENCODER),
            d_model=32,
            max_text_len=12,
            fusion_droppath=0.0,
        ),
        phrases,
        2,
        loss=mean_of("pred_boxes"),
    ),
    row(
        "Mask2FormerForUniversalSegmentation",
        lambda t: t.Mask2FormerConfig(
            backbone_config=swin(t, "stage1", "stage2", "stage3", "stage4"),
            feature_size=32,
            mask_feature_size=32,
            hidden_dim=32,
            encoder_feedforward_dim=24,
            encoder_layers=1,
            decoder_layers=2,
            num_attention_heads=2,
            dim_feedforward=24,
            num_queries=5,
            num_labels=3,
        ),
        pictures(64),
        2,
        loss=masks,
    ),
    row(
        "EomtForUniversalSegmentation",
        lambda t: t.EomtConfig(
            **VISION | {"num_hidden_layers": 3},
            num_queries=4,
            num_blocks=1,
            num_upscale_blocks=1,
            num_register_tokens=1,
        ),
        pictures(32),
        2,
        loss=masks,
    ),
    row(
        "VitPoseForPoseEstimation",
        lambda t: t.VitPoseConfig(
            backbone_config=t.VitPoseBackboneConfig(
                image_size=(32, 32),
                patch_size=(8, 8),
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                out_indices=[2],
            ),
            num_labels=3,
        ),
        pictures(32),
        2,
        loss=mean_of("heatmaps"),
    ),
    # Series.
    row("TimeSeriesTransformerForPrediction", lambda t: t.TimeSeriesTransformerConfig(**SERIES), series, 2, labels=()),
    row("InformerForPrediction", lambda t: t.InformerConfig(**SERIES), series, 2, labels=()),
    row(
        "AutoformerForPrediction",
        lambda t: t.AutoformerConfig(**SERIES, moving_average=3, label_length=2, autocorrelation_factor=1),
        series,
        2,
        labels=(),
        training=LAGS,
    ),
    # Recurrences.
    row("xLSTMForCausalLM", lambda t: t.xLSTMConfig(**XLSTM), tokens, 2),
    row(
        "Lfm2ForCausalLM", lambda t: t.Lfm2Config(**DECODER, layer_types=["conv", "full_attention", "conv"]), tokens, 2
    ),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("transformers")
    check(row, mode)
