"""Small models of every kind that a compiled step must train exactly as eager PyTorch does.

A case is one model with random inputs from a seed. `forward` returns the loss, or (output, loss). `cuts` names the
submodules before which a pipeline stage may begin, in order of execution.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Case:
    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], tuple]  # n samples -> tensors of which dim 0 is n
    cuts: tuple = ()
    micro_batch: int = 2
    random: bool = False  # draws random numbers in forward

    def build(self, seed=0):
        torch.manual_seed(seed)
        return self.model()

    def batch(self, micro_batches, seed=1):
        torch.manual_seed(seed)
        return self.inputs(self.micro_batch * micro_batches)


CASES = {}


def case(name, inputs, **fields):
    """Registers a module class as a case."""

    def register(model):
        CASES[name] = Case(name, model, inputs, **fields)
        return model

    return register


def noise(*shape, classes=None):
    """Random numbers and, as asked for, classes or numbers like the last dimension to fit."""

    def make(n):
        target = torch.randn(n, shape[-1]) if classes is None else torch.randint(classes, (n,))
        return torch.randn(n, *shape), target

    return make


def tokens(vocabulary, length):
    def make(n):
        ids = torch.randint(vocabulary, (n, length + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    return make


@case("linear", noise(6))
class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x, target):
        return F.mse_loss(self.layer(x), target)


@case("mlp", noise(12, classes=5), cuts=("second", "third"))
class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.Linear(12, 24), nn.Linear(24, 24), nn.Linear(24, 5)

    def forward(self, x, target):
        x = torch.tanh(self.second(F.relu(self.first(x))))
        logits = self.third(x)
        return logits, F.cross_entropy(logits, target)


@case("residual", noise(16, classes=4), cuts=("cells.1", "cells.2", "head"))
class Residual(nn.Module):
    """Adds over its layers: values that skip stages when it is cut."""

    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleList([nn.Sequential(nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16)) for _ in range(4)])
        self.head = nn.Linear(32, 4)

    def forward(self, x, target):
        first = x
        for cell in self.cells:
            x = x + cell(x)
        return F.cross_entropy(self.head(torch.cat([x, first], 1)), target)


@case("encoder", noise(6, 16), cuts=("layers.1",))
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True) for _ in range(2)]
        )

    def forward(self, x, target):
        for layer in self.layers:
            x = layer(x)
        return F.smooth_l1_loss(x.mean(1), target)


@case("decoder-tied", tokens(13, 5), cuts=("up",))
class TiedDecoder(nn.Module):
    """Uses its embedding a second time as output weights: gradients from two stages meet."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 8)
        self.qkv, self.up, self.down = nn.Linear(8, 24), nn.Linear(8, 16), nn.Linear(16, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, ids, target):
        x = self.embedding(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = self.norm(x + self.down(F.silu(self.up(x))))
        logits = x @ self.embedding.weight.t()
        return F.cross_entropy(logits.flatten(0, 1), target.flatten())


@case("attention-by-hand", noise(5, 12), cuts=("outward",))
class AttentionByHand(nn.Module):
    """Views of every kind: split heads, masks, transposes, softmax."""

    def __init__(self):
        super().__init__()
        self.inward, self.outward = nn.Linear(12, 36), nn.Linear(12, 12)
        self.register_buffer("mask", torch.tril(torch.ones(5, 5, dtype=torch.bool)))

    def forward(self, x, target):
        heads = self.inward(x).view(x.size(0), 5, 3, 3, 4).permute(2, 0, 3, 1, 4)
        q, k, v = heads[0], heads[1], heads[2]
        scores = (q @ k.transpose(-2, -1) / 2.0).masked_fill(~self.mask, float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).contiguous().view(x.size(0), 5, 12)
        return F.l1_loss(self.outward(mixed)[:, -1], target)


@case("convnet", noise(3, 8, 8, classes=4), cuts=("conv2", "head"), micro_batch=4)
class ConvNet(nn.Module):
    """Batch normalisation: running statistics must follow, micro-batch after micro-batch."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.norm2 = nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8, momentum=0.3)
        self.head = nn.Linear(8, 4)

    def forward(self, x, target):
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.relu(self.norm2(self.conv2(x)))
        logits = self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))
        return logits, F.cross_entropy(logits, target, label_smoothing=0.1)


@case("residual-convnet", noise(4, 8, 8, classes=4), cuts=("conv2",))
class ResidualConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1, groups=2)
        self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, 4)

    def forward(self, x, target):
        y = F.leaky_relu(self.norm(self.conv1(x)))
        x = x + F.hardswish(self.conv2(y))
        x = F.avg_pool2d(x, 2)
        return F.nll_loss(F.log_softmax(self.head(x.amax((2, 3))), -1), target)


@case("upsample", noise(3, 4, 4, classes=4))
class UpSample(nn.Module):
    def __init__(self):
        super().__init__()
        self.narrow, self.widen = nn.Conv2d(3, 4, 1), nn.ConvTranspose2d(4, 4, 2, stride=2)

    def forward(self, x, target):
        x = F.interpolate(self.widen(self.narrow(x)), scale_factor=2, mode="bilinear", align_corners=False)
        return F.cross_entropy(F.pad(x, (1, 1)).mean((2, 3)), target)


@case("conv1d", noise(3, 9, classes=3))
class Conv1d(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4)
        self.prelu, self.head = nn.PReLU(), nn.Linear(4, 3)

    def forward(self, x, target):
        return F.cross_entropy(self.head(self.prelu(self.norm(self.conv(x))).mean(2)), target)


@case("lstm", tokens(11, 4), cuts=("rnn", "head"))
class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(11, 8), nn.LSTM(8, 8, 2, batch_first=True), nn.Linear(8, 11)

    def forward(self, ids, target):
        hidden, _ = self.rnn(self.embedding(ids))
        return F.cross_entropy(self.head(hidden).transpose(1, 2), target)


@case("gru", tokens(11, 4))
class Gru(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.rnn, self.head = nn.Embedding(11, 8), nn.GRU(8, 8, batch_first=True), nn.Linear(8, 11)

    def forward(self, ids, target):
        return F.cross_entropy(self.head(self.rnn(self.embedding(ids))[0]).flatten(0, 1), target.flatten())


@case("in-place", noise(8, classes=4), cuts=("second",))
class InPlace(nn.Module):
    """Writes into values and into views of them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, target):
        y = self.first(x)
        y[:, :4].mul_(0.5)
        y.relu_()
        z = y.clone()
        z[:, 2:6] += y[:, :4]
        z[:, 0] = 1.0
        return F.cross_entropy(self.second(z).add_(0.25), target)


@case("counter", noise(5))
class Counter(nn.Module):
    """Changes buffers of its own in forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.register_buffer("average", torch.zeros(5))
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x, target):
        y = self.layer(x)
        with torch.no_grad():
            self.steps.add_(1)
            self.average.mul_(0.9).add_(y.mean(0), alpha=0.1)
        return F.mse_loss(y - self.average / self.steps, target)


@case("frozen-and-unused", noise(6, classes=3), cuts=("head",))
class FrozenAndUnused(nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen, self.unused, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x, target):
        return F.cross_entropy(self.head(torch.sigmoid(self.frozen(x))), target)


@case("shared-layer", noise(6), cuts=("middle",))
class SharedLayer(nn.Module):
    """Applies one layer twice, in two stages when it is cut."""

    def __init__(self):
        super().__init__()
        self.shared, self.middle = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, target):
        return F.huber_loss(self.shared(F.elu(self.middle(self.shared(x)))), target)


@case("scalars", noise(4))
class Scalars(nn.Module):
    """Parameters without dimensions, powers, reductions, comparisons."""

    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.tensor(-0.5))
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x, target):
        y = self.scale * self.layer(x) ** 2 + self.shift
        y = torch.where(y > 0, y, 0.1 * y)
        y = y / (1e-3 + y.pow(2).sum(-1, keepdim=True).sqrt()) + y.std(-1, keepdim=True).clamp(max=1.0)
        return (torch.exp(-y.abs()) * F.softplus(target)).mean()


@case("binary", noise(6, 4))
class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6 * 4, 4)

    def forward(self, x, target):
        logits = self.layer(x.flatten(1))
        return logits, F.binary_cross_entropy_with_logits(logits, (target > 0).float())


@case("divergence", noise(6))
class Divergence(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x, target):
        return F.kl_div(self.layer(x).log_softmax(-1), target.softmax(-1), reduction="batchmean")


@case("gather", tokens(9, 4))
class Gather(nn.Module):
    """Indexing with tensors: gather, index_select, advanced indexing, one-hot, sorting."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(9, 6)), nn.Linear(6, 9)

    def forward(self, ids, target):
        x = self.table[ids] + self.table.index_select(0, target.flatten()).view(*target.shape, 6).detach()
        x = x + x.sort(-1).values.flip(-1)
        picked = self.head(x).log_softmax(-1).gather(-1, target.unsqueeze(-1))
        return -picked.mean()


@case("dropout", noise(16, classes=4), random=True, cuts=("second",))
class Dropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 4)

    def forward(self, x, target):
        return F.cross_entropy(self.second(F.dropout(self.first(x), 0.3, self.training)), target)
