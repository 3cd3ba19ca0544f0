"""Eager PyTorch, the measure for all other systems."""

import torch

from .workloads import SEED


class Eager:
    """PyTorch's own accumulation over micro-batches. Losses: one a micro-batch."""

    def __init__(self, workload, threads):
        torch.set_num_threads(threads)
        self.size, self.micro_batches = workload.micro_batch, workload.micro_batches
        self.model = workload.model()
        self.optimizer = workload.optimizer(self.model.parameters())
        torch.manual_seed(SEED)

    def step(self, x, target):
        self.optimizer.zero_grad()
        losses = []
        for rows in zip(x.split(self.size), target.split(self.size), strict=True):
            loss = self.model(*rows)
            (loss / self.micro_batches).backward()
            losses.append(loss.detach())
        self.optimizer.step()
        return torch.stack(losses)
