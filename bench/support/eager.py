"""What all others are measured against."""

import torch

from .workloads import MICRO_BATCHES


class Eager:
    """PyTorch's own accumulation over micro-batches. Losses: one a micro-batch."""

    def __init__(self, workload, threads):
        torch.set_num_threads(threads)
        self.size = workload.micro_batch
        self.model = workload.model()
        self.optimizer = workload.optimizer(self.model.parameters())

    def step(self, x, target):
        self.optimizer.zero_grad()
        losses = []
        for rows in zip(x.split(self.size), target.split(self.size), strict=True):
            loss = self.model(*rows)
            (loss / MICRO_BATCHES).backward()
            losses.append(loss.detach())
        self.optimizer.step()
        return torch.stack(losses)
