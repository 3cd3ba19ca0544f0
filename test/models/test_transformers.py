"""Classes of transformers, tiny and with random weights."""

import pytest
import torch
from walk import Row, check

LENGTH, WORDS, SOUND = 12, 99, 400

ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": WORDS,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
DEBERTA_V2 = {**ENCODER, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
DECODER = {**ENCODER, "num_key_value_heads": 2, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
GPT2 = {"n_embd": 32, "n_layer": 3, "n_head": 4, "vocab_size": WORDS, "n_positions": 40, "use_cache": False}
SEQ2SEQ = {
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 48),
    "vocab_size": WORDS,
    "d_model": 32,
    "max_position_embeddings": 40,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "use_cache": False,
}
T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "use_cache": False,
}
IMAGES = {"image_size": 32, "patch_size": 8, "num_channels": 3}
VIT = {**{key: ENCODER[key] for key in list(ENCODER)[:4]}, **IMAGES}
SPEECH = {
    **{key: ENCODER[key] for key in list(ENCODER)[:5]},
    **dict.fromkeys(("layerdrop", "mask_time_prob"), 0.0),
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
}
STAGED = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_channels": 3}


def words(rows, length=LENGTH):
    return torch.randint(3, WORDS, (rows, length))


def text(rows):
    mask = torch.ones(rows, LENGTH, dtype=torch.long)
    mask[:, -3:] = 0
    return {"input_ids": words(rows), "attention_mask": mask}


def plain_text(rows):
    return {"input_ids": words(rows), "labels": words(rows)}


def tokens(rows):
    return {**text(rows), "labels": words(rows)}


def sentences(rows):
    return {**text(rows), "labels": torch.randint(2, (rows,))}


def spans(rows):
    ends = {name: torch.randint(LENGTH, (rows,)) for name in ("start_positions", "end_positions")}
    return {**text(rows), **ends}


def images(rows, size=32):
    return {"pixel_values": torch.randn(rows, 3, size, size), "labels": torch.randint(2, (rows,))}


def pixels(rows):
    return {"pixel_values": torch.randn(rows, 3, 32, 32)}


def large_images(rows):
    return images(rows, 64)


def regions(rows):
    return {"pixel_values": torch.randn(rows, 3, 64, 64), "labels": torch.randint(2, (rows, 64, 64))}


def large_pixels(rows):
    return {"pixel_values": torch.randn(rows, 3, 64, 64)}


def pairs(rows):
    return {**text(rows), "pixel_values": torch.randn(rows, 3, 32, 32)}


def sounds(rows):
    return {"input_values": torch.randn(rows, SOUND), "labels": torch.randint(2, (rows,))}


def speech(rows):
    return {"input_values": torch.randn(rows, SOUND), "labels": torch.randint(1, WORDS, (rows, 5))}


def spectra(rows):
    return {"input_features": torch.randn(rows, 8, 40), "decoder_input_ids": words(rows), "labels": words(rows)}


def words_and_decoder(rows):
    return {**text(rows), "decoder_input_ids": words(rows), "labels": words(rows)}


def mean_of(name):
    """For classes that compute no loss."""
    return lambda result, batch: result[name].float().square().mean()


def similarity(result, batch):
    from torch.nn.functional import cross_entropy

    return cross_entropy(result["logits_per_text"], torch.arange(len(result["logits_per_text"])))


def row(name, settings, batch, stages, **options):
    def make():
        import transformers

        made = getattr(transformers, name)
        return made(made.config_class(**settings))

    return Row(name, make, batch, stages, **options)


ROWS = [
    # Text in, text or classes out.
    row("BertForSequenceClassification", ENCODER, sentences, 2),
    row("BertForMaskedLM", ENCODER, tokens, 3),
    row("RobertaForMaskedLM", ENCODER, tokens, 4),
    row("XLMRobertaForTokenClassification", ENCODER, lambda rows: {**text(rows), "labels": words(rows) % 2}, 2),
    row(
        "DebertaForMaskedLM",
        ENCODER | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 16},
        tokens,
        2,
    ),
    row("DebertaV2ForSequenceClassification", DEBERTA_V2, sentences, 3),
    row("DebertaV2ForMaskedLM", DEBERTA_V2, tokens, 3),
    row("ElectraForSequenceClassification", ENCODER | {"embedding_size": 16}, sentences, 4),
    row("AlbertForMaskedLM", ENCODER | {"embedding_size": 16}, tokens, 2),
    row(
        "DistilBertForQuestionAnswering",
        {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "vocab_size": WORDS, "max_position_embeddings": 40},
        spans,
        3,
        labels=("start_positions", "end_positions"),
    ),
    row("MPNetForMaskedLM", ENCODER, tokens, 2),
    row("ModernBertForMaskedLM", ENCODER | {"global_attn_every_n_layers": 2, "local_attention": 4}, tokens, 2),
    row(
        "FNetForSequenceClassification",
        ENCODER,
        lambda rows: {"input_ids": words(rows), "labels": torch.randint(2, (rows,))},
        2,
    ),
    row("SqueezeBertForMaskedLM", ENCODER | {"embedding_size": 32}, tokens, 2),
    row(
        "XLNetForSequenceClassification",
        {"vocab_size": WORDS, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 48},
        sentences,
        2,
    ),
    # Text in, the next word out.
    row("GPT2LMHeadModel", GPT2, tokens, 4),
    row(
        "GPTNeoForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "max_position_embeddings": 40,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 4,
            "use_cache": False,
        },
        tokens,
        2,
    ),
    row("GPTNeoXForCausalLM", ENCODER | {"use_cache": False}, tokens, 3),
    row("GPTJForCausalLM", GPT2 | {"rotary_dim": 4}, tokens, 2),
    row(
        "OPTForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "word_embed_proj_dim": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 40,
            "use_cache": False,
        },
        tokens,
        3,
    ),
    row(
        "BloomForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 32, "n_layer": 3, "n_head": 4, "use_cache": False},
        tokens,
        4,
    ),
    row(
        "FalconForCausalLM",
        {key: ENCODER[key] for key in list(ENCODER)[:3]} | {"vocab_size": WORDS, "use_cache": False},
        tokens,
        2,
    ),
    row(
        "MptForCausalLM",
        {"vocab_size": WORDS, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 40, "use_cache": False},
        tokens,
        2,
    ),
    row("LlamaForCausalLM", DECODER, tokens, 4),
    row("MistralForCausalLM", DECODER | {"sliding_window": 4}, tokens, 3),
    row("Qwen2ForCausalLM", DECODER, tokens, 2),
    row("Qwen3ForCausalLM", DECODER | {"head_dim": 8}, tokens, 3),
    row("GemmaForCausalLM", DECODER | {"head_dim": 8}, tokens, 2),
    row("Gemma2ForCausalLM", DECODER | {"head_dim": 8, "sliding_window": 4}, tokens, 4),
    row("Gemma3ForCausalLM", DECODER | {"head_dim": 8, "sliding_window": 4}, tokens, 3),
    row("PhiForCausalLM", DECODER, tokens, 2),
    row("Phi3ForCausalLM", DECODER, tokens, 3),
    row("StableLmForCausalLM", DECODER, tokens, 2),
    row("Olmo2ForCausalLM", DECODER, tokens, 2),
    row("CohereForCausalLM", DECODER, tokens, 3),
    row("Starcoder2ForCausalLM", DECODER, tokens, 2),
    row("MixtralForCausalLM", DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2}, tokens, 2),
    row(
        "Qwen2MoeForCausalLM", DECODER | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16}, tokens, 2
    ),
    row("Qwen3MoeForCausalLM", DECODER | EXPERTS | {"num_experts": 4, "head_dim": 8}, tokens, 3),
    row("OlmoeForCausalLM", DECODER | {"num_experts": 4, "num_experts_per_tok": 2}, tokens, 2),
    row("GraniteMoeForCausalLM", DECODER | {"num_local_experts": 4, "num_experts_per_tok": 2}, tokens, 2),
    row(
        "MambaForCausalLM",
        {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 3, "state_size": 4, "use_cache": False},
        plain_text,
        2,
    ),
    row(
        "Mamba2ForCausalLM",
        {
            "vocab_size": WORDS,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "use_cache": False,
        },
        plain_text,
        2,
    ),
    # Text in, text out.
    row("T5ForConditionalGeneration", T5, words_and_decoder, 3),
    row("MT5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-gelu"}, words_and_decoder, 2),
    row("BartForConditionalGeneration", SEQ2SEQ, words_and_decoder, 4),
    row("MBartForConditionalGeneration", SEQ2SEQ, words_and_decoder, 2),
    row("PegasusForConditionalGeneration", SEQ2SEQ, words_and_decoder, 2),
    row("MarianMTModel", SEQ2SEQ | {"share_encoder_decoder_embeddings": True}, words_and_decoder, 3),
    row("BlenderbotForConditionalGeneration", SEQ2SEQ, words_and_decoder, 2),
    # Images.
    row("ViTForImageClassification", VIT, images, 4),
    row("DeiTForImageClassification", VIT, images, 3),
    row("BeitForImageClassification", VIT, images, 2),
    row("Dinov2ForImageClassification", VIT, images, 2),
    row(
        "ViTMAEForPreTraining",
        VIT
        | {
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 16,
        },
        pixels,
        2,
    ),
    row(
        "SwinForImageClassification",
        IMAGES | {"patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        images,
        3,
    ),
    row(
        "Swinv2ForImageClassification",
        IMAGES | {"patch_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4},
        images,
        2,
    ),
    row("ConvNextForImageClassification", STAGED, large_images, 4),
    row("ConvNextV2ForImageClassification", STAGED, large_images, 2),
    row("ResNetForImageClassification", STAGED | {"embedding_size": 8}, large_images, 3),
    row("RegNetForImageClassification", STAGED | {"embedding_size": 8, "groups_width": 4}, large_images, 2),
    row("PoolFormerForImageClassification", STAGED, large_images, 2),
    row("MobileNetV2ForImageClassification", {"depth_multiplier": 0.25, "image_size": 32}, images, 4),
    row(
        "SegformerForSemanticSegmentation",
        STAGED | {"num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16},
        regions,
        3,
    ),
    row(
        "DPTForSemanticSegmentation",
        VIT
        | {
            "image_size": 64,
            "neck_hidden_sizes": [8, 16, 16, 16],
            "fusion_hidden_size": 16,
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "is_hybrid": False,
        },
        regions,
        2,
    ),
    # Objects, and words about images.
    row(
        "YolosForObjectDetection",
        VIT | {"num_detection_tokens": 5, "image_size": [32, 32]},
        pixels,
        2,
        loss=mean_of("logits"),
    ),
    row(
        "DetrForObjectDetection",
        {
            "use_timm_backbone": False,
            "use_pretrained_backbone": False,
            "backbone": None,
            "backbone_config": {"model_type": "resnet", "out_features": ["stage4"], **STAGED, "embedding_size": 8},
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_queries": 5,
        },
        large_pixels,
        3,
        loss=mean_of("logits"),
    ),
    row(
        "CLIPModel",
        {"text_config": ENCODER | {"eos_token_id": 2}, "vision_config": VIT, "projection_dim": 16},
        pairs,
        2,
        loss=similarity,
    ),
    row("SiglipModel", {"text_config": ENCODER, "vision_config": VIT}, pairs, 3, loss=similarity),
    row(
        "SamModel",
        {
            "vision_config": VIT
            | {
                "image_size": 64,
                "mlp_dim": 48,
                "output_channels": 16,
                "num_pos_feats": 8,
                "global_attn_indexes": [1],
                "window_size": 3,
            },
            "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4},
            "mask_decoder_config": {
                "hidden_size": 16,
                "mlp_dim": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "iou_head_hidden_dim": 16,
            },
        },
        lambda rows: {**large_pixels(rows), "input_points": torch.rand(rows, 1, 2, 2) * 60},
        2,
        loss=mean_of("pred_masks"),
    ),
    # Sounds.
    row(
        "Wav2Vec2ForCTC",
        SPEECH,
        speech,
        2,
    ),
    row("HubertForSequenceClassification", SPEECH, sounds, 3),
    row(
        "WhisperForConditionalGeneration",
        SEQ2SEQ | {"num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32},
        spectra,
        4,
    ),
    row(
        "ASTForAudioClassification",
        {key: ENCODER[key] for key in list(ENCODER)[:4]}
        | {"num_mel_bins": 16, "max_length": 32, "patch_size": 8, "frequency_stride": 4, "time_stride": 4},
        lambda rows: {"input_values": torch.randn(rows, 32, 16), "labels": torch.randint(2, (rows,))},
        2,
    ),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("transformers")
    check(row, mode)
