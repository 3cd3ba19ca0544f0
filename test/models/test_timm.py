"""Models of timm, on small images and with random weights; the smallest of each family."""

import pytest
import torch
from called import Called, classes
from walk import Row, check


def images(size):
    def batch(rows):
        return {"x": torch.randn(rows, 3, size, size), "labels": torch.randint(5, (rows,))}

    return batch


def row(name, stages, size=32, **settings):
    def make():
        import timm

        return Called(timm.create_model(name, num_classes=5, **settings))

    return Row(name, make, images(size), stages, loss=classes)


ROWS = [
    row("resnet18", 2),
    row("resnetv2_18", 3),
    row("densenet121", 3),
    row("poolformerv2_s12", 2),
    row("efficientnet_b0", 4),
    row("mobilenetv3_small_050", 2),
    row("regnetx_002", 3),
    row("convnext_atto", 4),
    row("vit_tiny_patch16_224", 4, img_size=32),
    row("deit_tiny_patch16_224", 2, img_size=32, drop_path_rate=0.1),
    row("swin_tiny_patch4_window7_224", 2, 64, img_size=64, window_size=4, embed_dim=24, depths=(1, 1, 1, 1)),
    row("mixer_s32_224", 3, 64, img_size=64),
    row("mobilevit_xxs", 2, 64),
    row("xcit_nano_12_p16_224", 2, 32, img_size=32),
    row("ghostnet_050", 2),
    row("mambaout_femto", 2, 64),
    row("mobilenetv4_conv_small_035", 3, 64),
    row("fastvit_t8", 2, 64),
    row("repvit_m0_9", 2, 64),
    row("starnet_s1", 2, 64),
    row("shvit_s1", 2, 64),
    row("vit_small_patch16_dinov3", 2, 64, depth=2),
    row("naflexvit_base_patch16_gap", 2, 64, depth=2),
    row("swiftformer_xs", 2, 64),
    row("inception_next_atto", 2, 64),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("timm")
    check(row, mode)
