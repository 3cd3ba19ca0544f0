"""Two small networks for 8 x 8 digits, cut into four pipeline stages in the two ways that PopTorch offers."""

import poptorch
import torch
import torch.nn.functional as F
from torch import nn


class EncoderLayer(nn.Module):
    """Pre-norm transformer layer."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm2, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        batch, tokens, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, tokens, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    """16 overlapping patches of 4 x 4 pixels, 4 layers, mean over patches. Stages by BeginBlock on the layers."""

    def __init__(self, dim=32, heads=4):
        super().__init__()
        self.embed = nn.Conv2d(1, dim, 4, 2, 1)
        self.position = nn.Parameter(torch.randn(16, dim) * 0.02)
        self.layers = nn.ModuleList([EncoderLayer(dim, heads) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)
        poptorch.BeginBlock(self.embed, ipu_id=0)
        for stage in (1, 2, 3):
            poptorch.BeginBlock(self.layers[stage], ipu_id=stage)

    def forward(self, images, labels=None):
        x = self.embed(images).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x).mean(1))
        return logits if labels is None else (logits, F.cross_entropy(logits, labels))


class ResidualBlock(nn.Module):
    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.skip = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.skip = nn.Conv2d(channels_in, channels, 1, stride, bias=False)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


class ResNet(nn.Module):
    """Four residual blocks with batch normalisation. Stages by Block in forward."""

    def __init__(self, width=16):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.block1 = ResidualBlock(width, width, 1)
        self.block2 = ResidualBlock(width, 2 * width, 2)
        self.block3 = ResidualBlock(2 * width, 2 * width, 1)
        self.block4 = ResidualBlock(2 * width, 4 * width, 2)
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images, labels=None):
        with poptorch.Block(ipu_id=0):
            x = self.block1(F.relu(self.norm(self.stem(images))))
        with poptorch.Block(ipu_id=1):
            x = self.block2(x)
        with poptorch.Block(ipu_id=2):
            x = self.block3(x)
        with poptorch.Block(ipu_id=3):
            logits = self.head(self.block4(x).mean((2, 3)))
            return logits if labels is None else (logits, F.cross_entropy(logits, labels))
