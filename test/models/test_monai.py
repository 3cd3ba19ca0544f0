"""Networks of monai, small and with random weights."""

import pytest
import torch
from called import Called, square
from walk import Row, check

WIDE = {"in_channels": 3, "out_channels": 2}
DEEP = {"in_channels": 1, "out_channels": 2}


def pictures(rows):
    return {"x": torch.randn(rows, 3, 32, 32)}


def scans(rows):
    return {"x": torch.randn(rows, 1, 32, 32, 32)}


def row(name, batch, stages, *positional, **settings):
    def make():
        import monai.networks.nets

        return Called(getattr(monai.networks.nets, name)(*positional, **settings))

    return Row(name, make, batch, stages, loss=square)


ROWS = [
    row("UNet", pictures, 2, 2, **WIDE, channels=(8, 16, 32), strides=(2, 2), num_res_units=1),
    row("AttentionUnet", pictures, 2, 2, **WIDE, channels=(8, 16, 32), strides=(2, 2)),
    row("DynUNet", pictures, 3, 2, **WIDE, kernel_size=[3] * 3, strides=[1, 2, 2], upsample_kernel_size=[2, 2]),
    row("SegResNet", pictures, 2, 2, **WIDE, init_filters=8, blocks_down=(1, 1, 1), blocks_up=(1, 1)),
    row("HighResNet", pictures, 4, 2, **WIDE),
    row("DenseNet", scans, 2, 3, **DEEP, init_features=8, growth_rate=4, block_config=(1, 1)),
    row("UNETR", scans, 2, **DEEP, img_size=(32,) * 3, feature_size=8, hidden_size=32, mlp_dim=48, num_heads=4),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("monai")
    check(row, mode)
