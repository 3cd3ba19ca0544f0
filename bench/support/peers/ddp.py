"""DistributedDataParallel over Gloo: two processes of one thread, each with half of the micro-batches.

Gradients are added up over the micro-batches of a process, and averaged over the processes during its last backward.
"""

import contextlib

import torch

from . import peer

PROCESSES = 2


@peer("ddp", processes=PROCESSES)
class DataParallel:
    """Losses: those of the own micro-batches."""

    def __init__(self, workload):
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), workload.micro_batch
        self.number = workload.micro_batches // PROCESSES
        self.model = DistributedDataParallel(workload.model())
        self.optimizer = workload.optimizer(self.model.parameters())

    def step(self, x, target):
        self.optimizer.zero_grad()
        mine = zip(*(t.chunk(PROCESSES)[self.rank].split(self.size) for t in (x, target)), strict=True)
        losses = []
        for index, rows in enumerate(mine):
            apart = self.model.no_sync() if index + 1 < self.number else contextlib.nullcontext()
            with apart:
                loss = self.model(*rows)
                (loss / self.number).backward()
            losses.append(loss.detach())
        self.optimizer.step()
        return torch.stack(losses)
