"""Networks of segmentation_models_pytorch, with random weights."""

import pytest
import torch
from called import Called, classes
from walk import Row, check


def regions(rows):
    return {"x": torch.randn(rows, 3, 64, 64), "labels": torch.randint(2, (rows, 64, 64))}


def row(name, stages):
    def make():
        import segmentation_models_pytorch

        return Called(getattr(segmentation_models_pytorch, name)("resnet18", encoder_weights=None, classes=2))

    return Row(name, make, regions, stages, loss=classes)


ROWS = [
    row("Unet", 2),
    row("UnetPlusPlus", 3),
    row("FPN", 2),
    row("PSPNet", 2),
    row("DeepLabV3Plus", 3),
    row("Linknet", 2),
    row("MAnet", 2),
    row("UPerNet", 2),
    row("Segformer", 2),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("segmentation_models_pytorch")
    check(row, mode)
