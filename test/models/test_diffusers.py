"""Networks of diffusers, tiny and with random weights."""

import pytest
import torch
from walk import Row, check

SIZE, CHANNELS, WORDS, WIDTH = 16, 4, 6, 16
BLOCKS = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8}
UNET = {"sample_size": SIZE, "in_channels": CHANNELS, "out_channels": CHANNELS, **BLOCKS}
CROSS = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "cross_attention_dim": WIDTH,
    "attention_head_dim": 8,
}
AUTOENCODER = {
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": CHANNELS,
    "down_block_types": ("DownEncoderBlock2D", "DownEncoderBlock2D"),
    "up_block_types": ("UpDecoderBlock2D", "UpDecoderBlock2D"),
    **BLOCKS,
}
TRANSFORMER = {
    "sample_size": SIZE,
    "patch_size": 2,
    "in_channels": CHANNELS,
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
}


FLUX = {
    "patch_size": 1,
    "in_channels": CHANNELS,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "axes_dims_rope": (4, 4, 8),
}


def steps(rows):
    return torch.randint(1000, (rows,))


def noise(rows):
    return {"sample": torch.randn(rows, CHANNELS, SIZE, SIZE), "timestep": steps(rows)}


def prompted(rows):
    return {**noise(rows), "encoder_hidden_states": torch.randn(rows, WORDS, WIDTH)}


def video(rows):
    return {**prompted(rows), "sample": torch.randn(rows, CHANNELS, 2, SIZE, SIZE)}


def pictures(rows):
    return {"sample": torch.randn(rows, 3, SIZE, SIZE)}


def latents(rows):
    return {"hidden_states": torch.randn(rows, CHANNELS, SIZE, SIZE), "timestep": steps(rows)}


def labelled(rows):
    return {**latents(rows), "class_labels": torch.randint(10, (rows,))}


def captioned(rows):
    return {**latents(rows), "encoder_hidden_states": torch.randn(rows, WORDS, WIDTH)}


def pooled(rows):
    return {**captioned(rows), "pooled_projections": torch.randn(rows, WIDTH)}


def sequences(rows):
    return {
        "hidden_states": torch.randn(rows, 16, CHANNELS),
        "encoder_hidden_states": torch.randn(rows, WORDS, 32),
        "timestep": torch.rand(rows),
    }


def framed(rows, *sizes):
    return {**captioned(rows), "hidden_states": torch.randn(rows, *sizes, 8, 8)}


def control(rows):
    return {**prompted(rows), "controlnet_cond": torch.randn(rows, 3, 2 * SIZE, 2 * SIZE)}


def mean_square(result, batch):
    return result["sample"].float().square().mean()


def controls(result, batch):
    return result["mid_block_res_sample"].mean()  # its convolutions begin as zeros: squares would have no gradient


class Fixed(torch.nn.Module):
    """A network and the arguments that have no rows, which do not change."""

    def __init__(self, model, arguments):
        super().__init__()
        self.model, self.plain = model, {}
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                self.register_buffer(name, value)
            else:
                self.plain[name] = value

    def forward(self, **batch):
        return self.model(**batch, **self.plain, **self._buffers)


def row(name, settings, batch, stages, loss=mean_square, fixed=None, **options):
    def make():
        import diffusers

        model = getattr(diffusers, name)(**settings)
        return model if fixed is None else Fixed(model, fixed())

    return Row(name, make, batch, stages, loss=loss, labels=(), **options)


ROWS = [
    row(
        "UNet2DModel",
        UNET
        | {
            "down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
            "up_block_types": ("AttnUpBlock2D", "UpBlock2D"),
            "attention_head_dim": 8,
        },
        noise,
        3,
    ),
    row("UNet2DConditionModel", UNET | CROSS, prompted, 4),
    row(
        "UNet3DConditionModel",
        UNET
        | CROSS
        | {
            "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
            "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
        },
        video,
        2,
    ),
    row(
        "ControlNetModel",
        {
            **BLOCKS,
            **{key: CROSS[key] for key in CROSS if key != "up_block_types"},
            "in_channels": CHANNELS,
            "conditioning_embedding_out_channels": (16, 32),
        },
        control,
        2,
        controls,
    ),
    row("AutoencoderKL", AUTOENCODER, pictures, 4),
    row(
        "AsymmetricAutoencoderKL",
        {
            **{key: AUTOENCODER[key] for key in AUTOENCODER if key not in BLOCKS},
            "norm_num_groups": 8,
            "down_block_out_channels": (16, 32),
            "up_block_out_channels": (16, 32),
            "layers_per_down_block": 1,
            "layers_per_up_block": 1,
        },
        pictures,
        2,
    ),
    row(
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (8, 8),
            "decoder_block_out_channels": (8, 8),
            "num_encoder_blocks": (1, 1),
            "num_decoder_blocks": (1, 1),
        },
        pictures,
        2,
    ),
    row("VQModel", {**AUTOENCODER, "num_vq_embeddings": 16}, pictures, 3),
    row("DiTTransformer2DModel", TRANSFORMER | {"num_embeds_ada_norm": 10}, labelled, 2),
    row(
        "PixArtTransformer2DModel",
        TRANSFORMER
        | {
            "out_channels": CHANNELS,
            "cross_attention_dim": WIDTH,
            "caption_channels": WIDTH,
            "use_additional_conditions": False,
        },
        captioned,
        3,
    ),
    row(
        "SD3Transformer2DModel",
        TRANSFORMER
        | {
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": 16,
            "pooled_projection_dim": WIDTH,
            "out_channels": CHANNELS,
            "pos_embed_max_size": 16,
        },
        pooled,
        2,
    ),
    row(
        "SanaTransformer2DModel",
        TRANSFORMER
        | {
            "patch_size": 1,
            "num_cross_attention_heads": 2,
            "cross_attention_head_dim": 8,
            "cross_attention_dim": 16,
            "caption_channels": WIDTH,
            "out_channels": CHANNELS,
        },
        captioned,
        2,
    ),
    row(
        "FluxTransformer2DModel",
        {
            **FLUX,
            "num_layers": 2,
            "num_single_layers": 2,
            "pooled_projection_dim": 32,
        },
        lambda rows: {**sequences(rows), "pooled_projections": torch.randn(rows, 32)},
        3,
        fixed=lambda: {
            "img_ids": torch.cartesian_prod(torch.zeros(1), *[torch.arange(4.0)] * 2),
            "txt_ids": torch.zeros(WORDS, 3),
        },
    ),
    row(
        "ChromaTransformer2DModel",
        {
            **FLUX,
            "num_layers": 1,
            "num_single_layers": 1,
            "approximator_hidden_dim": 32,
            "approximator_layers": 1,
            "approximator_num_channels": 16,
        },
        sequences,
        2,
        fixed=lambda: {"img_ids": torch.rand(16, 3), "txt_ids": torch.zeros(WORDS, 3)},
    ),
    row(
        "CogVideoXTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "time_embed_dim": 8,
            "text_embed_dim": WIDTH,
            "num_layers": 2,
            "sample_width": 8,
            "sample_height": 8,
            "sample_frames": 5,
            "max_text_seq_length": WORDS,
        },
        lambda rows: framed(rows, 2, CHANNELS),
        2,
    ),
    row(
        "WanTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "text_dim": WIDTH,
            "freq_dim": 16,
            "ffn_dim": 32,
            "num_layers": 2,
            "rope_max_seq_len": 32,
        },
        lambda rows: framed(rows, CHANNELS, 2),
        2,
    ),
    row(
        "LTXVideoTransformer3DModel",
        {
            "in_channels": 8,
            "out_channels": 8,
            "num_attention_heads": 2,
            "attention_head_dim": 16,
            "cross_attention_dim": 32,
            "num_layers": 2,
            "caption_channels": WIDTH,
        },
        lambda rows: {
            "hidden_states": torch.randn(rows, 32, 8),
            "encoder_hidden_states": torch.randn(rows, WORDS, WIDTH),
            "timestep": steps(rows),
            "encoder_attention_mask": torch.ones(rows, WORDS),
        },
        2,
        fixed=lambda: {"num_frames": 2, "height": 4, "width": 4},
    ),
    row(
        "AuraFlowTransformer2DModel",
        {
            "sample_size": 8,
            "num_mmdit_layers": 1,
            "num_single_dit_layers": 1,
            "attention_head_dim": 8,
            "num_attention_heads": 4,
            "joint_attention_dim": WIDTH,
            "caption_projection_dim": 32,
            "pos_embed_max_size": 64,
        },
        lambda rows: {**captioned(rows), "timestep": torch.rand(rows)},
        2,
    ),
    row(
        "Lumina2Transformer2DModel",
        {
            "in_channels": CHANNELS,
            "hidden_size": 24,
            "num_layers": 2,
            "num_refiner_layers": 1,
            "num_attention_heads": 3,
            "num_kv_heads": 1,
            "multiple_of": 2,
            "axes_dim_rope": (4, 2, 2),
            "axes_lens": (32, 16, 16),
            "cap_feat_dim": WIDTH,
        },
        lambda rows: {
            **captioned(rows),
            "timestep": torch.rand(rows),
            "encoder_attention_mask": torch.ones(rows, WORDS).bool(),
        },
        2,
    ),
    row(
        "CogView3PlusTransformer2DModel",
        {
            "in_channels": CHANNELS,
            "out_channels": CHANNELS,
            "num_layers": 2,
            "attention_head_dim": 8,
            "num_attention_heads": 2,
            "text_embed_dim": WIDTH,
            "time_embed_dim": 16,
            "condition_dim": 8,
            "pos_embed_max_size": 8,
            "sample_size": 8,
        },
        lambda rows: {
            **captioned(rows),
            "original_size": torch.full((rows, 2), 32.0),
            "target_size": torch.full((rows, 2), 32.0),
            "crop_coords": torch.zeros(rows, 2),
        },
        2,
    ),
    row(
        "AllegroTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 12,
            "num_layers": 2,
            "cross_attention_dim": 24,
            "sample_height": 8,
            "sample_width": 8,
            "sample_frames": 2,
            "caption_channels": WIDTH,
        },
        lambda rows: {
            "hidden_states": torch.randn(rows, CHANNELS, 2, 8, 8),
            "encoder_hidden_states": torch.randn(rows, 1, WORDS, WIDTH),
            "timestep": steps(rows),
            "attention_mask": torch.ones(rows, 2, 8, 8),
            "encoder_attention_mask": torch.ones(rows, WORDS),
        },
        2,
    ),
    row(
        "AutoencoderDC",
        {
            "latent_channels": CHANNELS,
            "attention_head_dim": 2,
            **{f"{coder}_block_types": ("ResBlock", "EfficientViTBlock") for coder in ("encoder", "decoder")},
            **{f"{coder}_block_out_channels": (8, 8) for coder in ("encoder", "decoder")},
            **{f"{coder}_qkv_multiscales": ((), (5,)) for coder in ("encoder", "decoder")},
            **{f"{coder}_layers_per_block": (1, 1) for coder in ("encoder", "decoder")},
            "downsample_block_type": "conv",
            "upsample_block_type": "interpolate",
        },
        pictures,
        2,
    ),
    row(
        "PriorTransformer",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "embedding_dim": WIDTH,
            "num_embeddings": WORDS,
        },
        lambda rows: {
            "hidden_states": torch.randn(rows, WIDTH),
            "timestep": steps(rows),
            "proj_embedding": torch.randn(rows, WIDTH),
            "encoder_hidden_states": torch.randn(rows, WORDS, WIDTH),
            "attention_mask": torch.ones(rows, WORDS).bool(),
        },
        2,
        loss=lambda result, batch: result["predicted_image_embedding"].square().mean(),
    ),
    row(
        "MochiTransformer3DModel",
        {
            "num_attention_heads": 2,
            "attention_head_dim": 8,
            "num_layers": 2,
            "pooled_projection_dim": 16,
            "in_channels": CHANNELS,
            "text_embed_dim": WIDTH,
            "time_embed_dim": 8,
            "max_sequence_length": WORDS,
        },
        lambda rows: {**framed(rows, CHANNELS, 2), "encoder_attention_mask": torch.ones(rows, WORDS).bool()},
        2,
    ),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("diffusers")
    check(row, mode)
