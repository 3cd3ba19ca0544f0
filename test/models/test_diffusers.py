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


def control(rows):
    return {**prompted(rows), "controlnet_cond": torch.randn(rows, 3, 2 * SIZE, 2 * SIZE)}


def meanSquare(result, batch):
    return result["sample"].float().square().mean()


def controls(result, batch):
    return result["mid_block_res_sample"].mean()  # its convolutions begin as zeros: squares would have no gradient


def row(name, settings, batch, stages, loss=meanSquare, **options):
    def make():
        import diffusers

        return getattr(diffusers, name)(**settings)

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
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("diffusers")
    check(row, mode)
