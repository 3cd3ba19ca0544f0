"""torch.distributed.pipelining: one rank of two that have a thread each and talk over Gloo.

Stages are the parts of the workload between its cuts: two, cut where our two devices are, or four, of which each rank
has two. Loss, optimizer, micro-batches and data are the workload's own. "-compile": each stage by inductor.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from ..workloads import token_loss
from . import peer


@dataclass(frozen=True)
class Pipeline:
    """A schedule of torch.distributed.pipelining, and which stages each of the two ranks has."""

    schedule: str
    stages_of: tuple
    compiled: bool = False


PIPELINES = {
    "gpipe": Pipeline("GPipe", ((0,), (1,))),
    "1f1b": Pipeline("1F1B", ((0,), (1,))),
    "1f1b-compile": Pipeline("1F1B", ((0,), (1,)), compiled=True),
    "interleaved": Pipeline("Interleaved1F1B", ((0, 2), (1, 3))),
    "zbv": Pipeline("ZBVZeroBubble", ((0, 3), (1, 2))),
}


class Stage(nn.Module):
    """Some parts in turn. What it hands over, forward and back, lies in one row, as Gloo asks."""

    def __init__(self, parts, compiled):
        super().__init__()
        self.parts = nn.Sequential(*parts)
        if compiled:
            self.parts = torch.compile(self.parts)

    def forward(self, x):
        if x.requires_grad:
            x = x.view_as(x)
            x.register_hook(torch.Tensor.contiguous)
        return self.parts(x).contiguous()


class Pipelining:
    """Losses: one a micro-batch, in the rank that has the last stage; none in the other."""

    def __init__(self, pipeline, workload):
        import torch.distributed as dist
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        mine = pipeline.stages_of[dist.get_rank()]
        number = sum(len(stages) for stages in pipeline.stages_of)
        parts = list(workload.model().parts)
        cuts = [0, *((workload.cut,) if number == 2 else workload.quarters), len(parts)]
        held = [p for begin, end in pairwise(cuts) for p in nn.ModuleList(parts[begin:end]).parameters()]
        if len(held) > len(set(held)):
            raise ValueError("stages share weights, whose gradients torch.distributed.pipelining does not add up")
        modules = [Stage(parts[cuts[stage] : cuts[stage + 1]], pipeline.compiled) for stage in mine]
        stages = [
            PipelineStage(module, stage, number, torch.device("cpu"))
            for module, stage in zip(modules, mine, strict=True)
        ]
        kind = get_schedule_class(pipeline.schedule)
        self.schedule = kind(stages if number > 2 else stages[0], workload.micro_batches, loss_fn=token_loss)
        self.optimizer = workload.optimizer([p for module in modules for p in module.parameters()])
        self.has_first, self.has_last = 0 in mine, number - 1 in mine

    def step(self, x, target):
        losses = []
        self.optimizer.zero_grad()
        inputs = (x,) if self.has_first else ()
        last = {"target": target, "losses": losses} if self.has_last else {}
        self.schedule.step(*inputs, return_outputs=False, **last)
        self.optimizer.step()
        return torch.stack(losses).detach() if losses else torch.empty(0)


for name, pipeline in PIPELINES.items():
    peer(name, processes=2)(partial(Pipelining, pipeline))
