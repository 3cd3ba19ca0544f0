"""Networks of vit_pytorch, small and with random weights."""

import importlib

import pytest
import torch
from called import Called, classes
from walk import Row, check

PLAIN = {"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 48}


def images(size):
    return lambda rows: {"x": torch.randn(rows, 3, size, size), "labels": torch.randint(5, (rows,))}


def row(name, module, batch, stages, **settings):
    def make():
        return Called(getattr(importlib.import_module(f"vit_pytorch.{module}"), name)(**settings))

    return Row(name, make, batch, stages, loss=classes)


ROWS = [
    row("SimpleViT", "simple_vit", images(32), 2, **PLAIN),
    row("DeepViT", "deepvit", images(32), 3, **PLAIN, dropout=0.1),
    row("CaiT", "cait", images(32), 2, **PLAIN, cls_depth=1),
    row(
        "T2TViT",
        "t2t",
        images(32),
        2,
        **{k: v for k, v in PLAIN.items() if k != "patch_size"},
        t2t_layers=((7, 4), (3, 2)),
    ),
    row(
        "CrossViT",
        "cross_vit",
        images(32),
        2,
        image_size=32,
        num_classes=5,
        depth=1,
        sm_dim=16,
        sm_patch_size=8,
        sm_enc_depth=1,
        sm_enc_heads=2,
        sm_enc_mlp_dim=24,
        lg_dim=32,
        lg_patch_size=16,
        lg_enc_depth=1,
        lg_enc_heads=2,
        lg_enc_mlp_dim=24,
        cross_attn_depth=1,
        cross_attn_heads=2,
    ),
    row(
        "CvT",
        "cvt",
        images(32),
        3,
        num_classes=5,
        s1_emb_dim=8,
        s1_heads=1,
        s2_emb_dim=16,
        s2_heads=1,
        s2_depth=1,
        s3_emb_dim=24,
        s3_heads=2,
        s3_depth=1,
    ),
    row(
        "MaxViT",
        "max_vit",
        images(64),
        2,
        num_classes=5,
        dim_conv_stem=8,
        dim=16,
        dim_head=8,
        depth=(1, 1),
        window_size=4,
    ),
    row(
        "NesT",
        "nest",
        images(32),
        2,
        image_size=32,
        patch_size=4,
        dim=16,
        heads=2,
        num_hierarchies=2,
        block_repeats=(1, 1),
        num_classes=5,
    ),
    row("RegionViT", "regionvit", images(64), 2, dim=(8, 16, 24, 32), depth=(1, 1, 1, 1), window_size=2, num_classes=5),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("vit_pytorch")
    check(row, mode)
