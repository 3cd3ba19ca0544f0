"""Lets the tests find the libraries that `./dev test --models` installs into build/models."""

import pathlib
import sys

import pytest
import torch

FOLDER = pathlib.Path(__file__).parents[2] / "build" / "models"
sys.path.insert(0, str(FOLDER))

# The wheel of torchvision that an index offers may be built for CUDA: then its kernels do not load. timm and
# transformers import it; none of these models uses one.
_operators = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


@pytest.fixture(autouse=True)
def one_thread_everywhere(one_thread):
    """Of all tests of the folder."""
