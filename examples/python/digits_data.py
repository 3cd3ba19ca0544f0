"""The handwritten digits of examples/data, and an order of samples that C++ repeats exactly."""

import math
from pathlib import Path

import torch

FILE = Path(__file__).resolve().parent.parent / "data" / "digits.bin"
IMAGES, PIXELS = 1797, 64


def load(path=FILE):
    """The digits as ((train images, labels), (test images, labels)).

    Every fifth record is held out for testing. Pixels have mean 0 and standard deviation 1 over the training part.

    Shapes: images float32 [n, 1, 8, 8]; labels int64 [n].
    """
    raw = Path(path).read_bytes()
    if len(raw) != IMAGES * (PIXELS + 1):
        raise ValueError(f"{path}: expected {IMAGES * (PIXELS + 1)} bytes, found {len(raw)}")
    records = [raw[start : start + PIXELS + 1] for start in range(0, len(raw), PIXELS + 1)]
    train = [record for i, record in enumerate(records) if i % 5 != 4]
    test = [record for i, record in enumerate(records) if i % 5 == 4]

    # In integers, so that every language gets the same mean and deviation.
    count = len(train) * PIXELS
    total = sum(sum(record[:PIXELS]) for record in train)
    squares = sum(pixel * pixel for record in train for pixel in record[:PIXELS])
    mean = total / count
    deviation = math.sqrt(float(count * squares - total * total)) / count
    level = [(pixel - mean) / deviation for pixel in range(17)]

    def tensors(part):
        images = torch.tensor([[level[pixel] for pixel in record[:PIXELS]] for record in part])
        return images.view(-1, 1, 8, 8), torch.tensor([record[PIXELS] for record in part])

    return tensors(train), tensors(test)


class Shuffled(torch.utils.data.Sampler):
    """A new order of n samples in each epoch, from a generator that any language can repeat.

    Fisher and Yates' shuffle, drawing from Knuth's 64-bit linear congruential generator; each epoch shuffles the
    order of the one before.
    """

    def __init__(self, n, seed):
        self.order, self.state = list(range(n)), seed

    def __len__(self):
        return len(self.order)

    def __iter__(self):
        for last in range(len(self.order) - 1, 0, -1):
            self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
            pick = (self.state >> 33) % (last + 1)
            self.order[last], self.order[pick] = self.order[pick], self.order[last]
        return iter(list(self.order))
