"""Programs on inputs of all strides beside eager PyTorch, in a process of its own. Exits with 1 where they differ."""

import sys

import abele
import poptorch
import torch

ROWS, WIDTH = 8, 24


def inputs():
    yield "contiguous", torch.randn(ROWS, 5, WIDTH)
    yield "time first", torch.randn(5, ROWS, WIDTH).transpose(0, 1)
    yield "features first", torch.randn(ROWS, WIDTH, 5).transpose(1, 2)
    yield "batch last", torch.randn(5, WIDTH, ROWS).permute(2, 0, 1)
    yield "expanded", torch.randn(5, WIDTH).expand(ROWS, 5, WIDTH)
    yield "expanded inside", torch.randn(ROWS, 1, WIDTH).expand(ROWS, 5, WIDTH)
    yield "with gaps", torch.randn(ROWS, 5, 2 * WIDTH)[..., ::2]


def image():
    yield "channels last", torch.randn(ROWS, 3, 9, 7).contiguous(memory_format=torch.channels_last)
    yield "batch last", torch.randn(3, 9, 7, ROWS).permute(3, 0, 1, 2)


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.lstm = torch.nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.attention = torch.nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.0, batch_first=True)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.matrix = torch.nn.Parameter(torch.randn(1, WIDTH, WIDTH) / 5)

    def forward(self, x):
        y = self.out(x) + self.norm(x) + self.lstm(x)[0] + self.attention(x) + torch.matmul(x, self.matrix)
        y = y + torch.softmax(x @ x.transpose(1, 2), -1) @ x + x.cumsum(1)
        return y, poptorch.identity_loss(y.square().mean(), "none")


class Images(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6)

    def forward(self, x):
        y = torch.nn.functional.max_pool2d(self.norm(self.conv(x)), 2)
        return y, poptorch.identity_loss(y.square().mean(), "none")


def differs(make, x, number):
    ours, theirs = make(), make()
    opts = poptorch.Options().deviceIterations(number).outputMode(poptorch.OutputMode.All)
    opts.threadsPerDevice(torch.get_num_threads())
    executor = abele.trainingModel(ours, opts, torch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(2):
        result, expected = executor(x)[0], []
        for part in x.chunk(number):
            optimizer.zero_grad()
            y, loss = theirs(part)
            loss.backward()
            optimizer.step()
            expected.append(y.detach())
        if not torch.equal(result, torch.cat(expected)):
            return "other results"
    names = [name for name, t in ours.state_dict().items() if not torch.equal(t, theirs.state_dict()[name])]
    return f"other weights: {names}" if names else ""


def main():
    torch.manual_seed(1)
    found = []
    for make, tensors in ((Layers, inputs()), (Images, image())):
        for name, x in tensors:
            for number in (1, 2):
                text = differs(make, x, number)
                found += [f"{make.__name__}, {name}, {number} micro-batches: {text}"] if text else []
    print("\n".join(found))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
