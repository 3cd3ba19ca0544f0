"""Networks that name their arguments in different ways and have no loss."""

import torch


class Called(torch.nn.Module):
    """Calls a network with the batch's x."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, labels=None):
        return self.model(x)


def classes(result, batch):
    return torch.nn.functional.cross_entropy(result, batch["labels"])


def square(result, batch):
    return result.square().mean()
