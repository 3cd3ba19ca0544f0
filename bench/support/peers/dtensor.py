"""Tensor parallelism of torch.distributed.tensor over Gloo: two processes of one thread, each with half of every layer.

The plan is Megatron's, as in torch's tutorial and in the `tp_plan` of transformers: the first product of a pair by
columns, the second by rows, whose partial sums are added; a large last product by columns. Both have the whole rest.
"""

from torch import nn

from ..eager import Eager
from . import peer

PROCESSES = 2
FUSED = (".inward", ".c_attn")  # queries, keys and values in one
COLUMNS = (*FUSED, ".query", ".key", ".value", ".q_proj", ".k_proj", ".v_proj")
COLUMNS += (".up", ".c_fc", ".intermediate.dense", ".gate_proj", ".up_proj")
ROWS = (".outward", ".down", ".c_proj", ".output.dense", ".o_proj", ".down_proj")


def by_process(tensor, counts=(3, PROCESSES)):
    """Rows of queries, keys and values in the order that gives each process those of its heads. The other order of
    counts undoes it."""
    return tensor.unflatten(0, (*counts, -1)).transpose(0, 1).flatten(0, 2)


def plain(model):
    """The model with torch's own layers in place of GPT-2's, which plans do not know."""
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if type(layer).__name__ == "Conv1D":
                linear = nn.Linear(*layer.weight.shape)
                linear.weight, linear.bias = nn.Parameter(layer.weight.detach().t().contiguous()), layer.bias
                setattr(module, name, linear)
    return model


def divide(model):
    """Gives this process its half of a plain model that both have."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    plan = {name: ColwiseParallel() for name in layers if name.endswith(COLUMNS)}
    plan |= {name: RowwiseParallel() for name in layers if name.endswith(ROWS)}
    if not plan:
        raise ValueError("no layer whose name is in the plan")
    last, head = list(layers.items())[-1]
    tables = [table.weight for table in model.modules() if isinstance(table, nn.Embedding)]
    if head.out_features > head.in_features and not any(head.weight is table for table in tables):
        plan[last] = ColwiseParallel(output_layouts=Replicate())
    for name in layers:
        if name.endswith(FUSED):
            for tensor in layers[name].parameters():
                tensor.data = by_process(tensor.data)
    for module in model.modules():
        if hasattr(module, "split_size"):  # GPT-2's attention
            module.split_size //= PROCESSES
    return parallelize_module(model, init_device_mesh("cpu", (PROCESSES,)), plan)


@peer("dtensor", processes=PROCESSES)
class TensorParallel(Eager):
    """Losses: both processes have all; the first one tells them."""

    def __init__(self, workload):
        import torch.distributed as dist

        super().__init__(workload, threads=1)
        dist.init_process_group("gloo")
        self.is_first = dist.get_rank() == 0
        self.model = divide(plain(self.model))
        self.optimizer = workload.optimizer(self.model.parameters())

    def step(self, x, target):
        losses = super().step(x, target)
        return losses if self.is_first else losses[:0]
