"""Networks made of five parts or more, so that a pipeline may be cut anywhere between them.

Each class: `parts` in order of execution, `batch(n)` random inputs, `forward(*inputs)` -> (output, loss).
"""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH, LENGTH, VOCABULARY = 16, 6, 11


class Network(nn.Module):
    """Runs its parts one after another and takes the cross entropy of what comes out."""

    random = False  # draws random numbers in forward

    def __init__(self, parts):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def batch(self, n):
        return torch.randn(n, WIDTH), torch.randint(4, (n,))

    def forward(self, x, target):
        for part in self.parts:
            x = part(x)
        return x, F.cross_entropy(x, target)


class Sequence(Network):
    """From numbers of tokens to the number of the next one."""

    def batch(self, n):
        ids = torch.randint(VOCABULARY, (n, LENGTH + 1))
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def forward(self, x, target):
        for part in self.parts:
            x = part(x)
        return x, F.cross_entropy(x.flatten(0, 1), target.flatten())


class Encoder(Sequence):
    random = True

    def __init__(self):
        layers = [nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.1, batch_first=True) for _ in range(4)]
        super().__init__([nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)])


class CausalLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).view(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(Sequence):
    def __init__(self):
        layers = [CausalLayer() for _ in range(4)]
        super().__init__([nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)])


class TiedHead(nn.Module):
    def __init__(self, embedding):
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x):
        return F.linear(x, self.weight)


class Tied(Sequence):
    """The first and the last part share a weight."""

    def __init__(self):
        embedding = nn.Embedding(VOCABULARY, WIDTH)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3)]
        super().__init__([embedding, *layers, TiedHead(embedding)])


class First(nn.Module):
    """A recurrent layer, without its state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


class Lstm(Sequence):
    def __init__(self):
        layers = [First(nn.LSTM(WIDTH, WIDTH, batch_first=True)) for _ in range(3)]
        super().__init__([nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)])


class Gru(Sequence):
    def __init__(self):
        layers = [First(nn.GRU(WIDTH, WIDTH, batch_first=True)) for _ in range(3)]
        super().__init__([nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY)])


class ResidualConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        return F.relu(x + self.norm2(self.conv2(y)))


class ResNet(Network):
    def __init__(self):
        stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4))
        super().__init__([stem, *(ResidualConv() for _ in range(3)), head])

    def batch(self, n):
        return torch.randn(n, 3, 8, 8), torch.randint(4, (n,))


class DropoutCell(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + F.dropout(F.gelu(self.layer(self.norm(x))), 0.3, self.training)


class ResidualMlp(Network):
    random = True

    def __init__(self):
        super().__init__([*(DropoutCell() for _ in range(4)), nn.Linear(WIDTH, 4)])


class WritingCell(nn.Module):
    """Writes into its input, into views and into a buffer."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("total", torch.zeros(WIDTH))

    def forward(self, x):
        y = self.layer(x)
        y[:, :4].mul_(0.5)
        y.view(-1, 4, 4)[:, 1].add_(x[:, 4:8])
        y.relu_()
        with torch.no_grad():
            self.total += y.mean(0)
        left, right = y.chunk(2, 1)
        z = torch.cat([right, left], 1)
        z[:, 0] = z[:, 1] * 2
        return z + x


class InPlace(Network):
    def __init__(self):
        super().__init__([*(WritingCell() for _ in range(4)), nn.Linear(WIDTH, 4)])


NETWORKS = {network.__name__: network for network in (Encoder, Decoder, ResNet, Lstm, Gru, Tied, ResidualMlp, InPlace)}
