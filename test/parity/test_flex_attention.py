"""flex_attention without a gradient, as eager PyTorch runs it."""

import abele
import pytest
import torch
from torch import nn

flex = pytest.importorskip("torch.nn.attention.flex_attention")

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore:flex_attention called")]


class Attention(nn.Module):
    def __init__(self, masks):
        super().__init__()
        self.layer, self.masks = nn.Linear(8, 24), masks
        self.register_buffer("bias", torch.randn(6, 6))

    def forward(self, x):
        query, key, value = self.layer(x).view(2, 6, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        mask = None
        if self.masks:
            mask = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu")
        return flex.flex_attention(
            query, key, value, score_mod=lambda score, b, h, i, j: score + self.bias[i, j], block_mask=mask
        )


@pytest.mark.parametrize("masks", [False, True])
def test_inference(masks):
    torch.manual_seed(0)
    model = Attention(masks)
    executor = abele.inferenceModel(model)
    for _ in range(2):
        x = torch.randn(2, 6, 8)
        with torch.no_grad():
            assert torch.equal(executor(x), model(x))
