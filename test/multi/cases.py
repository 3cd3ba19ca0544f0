"""Trainings that several processes do together, and one process with all replicas alone."""

import os

import poptorch
import torch

# Rows that fill whole cache lines: what the same numbers give in a BLAS may depend on how they lie.
ROWS, CALLS = 4, 3


class Net(torch.nn.Module):
    """Two blocks, a dropout if asked for, and a loss."""

    def __init__(self, dropout=0.0, norm=False, hidden=8):
        super().__init__()
        self.first = poptorch.BeginBlock(torch.nn.Linear(16, hidden), ipu_id=0)
        self.norm = torch.nn.BatchNorm1d(hidden) if norm else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(dropout)
        self.second = poptorch.BeginBlock(torch.nn.Linear(hidden, 4), ipu_id=1)

    def forward(self, x, target):
        y = self.second(self.dropout(torch.tanh(self.norm(self.first(x)))))
        return y, poptorch.identity_loss(torch.nn.functional.mse_loss(y, target), reduction="mean")


def _sgd(parameters):
    return poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _shard(opts):
    settings = poptorch.TensorLocationSettings()
    settings.useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(2)
    opts.TensorLocations.setOptimizerLocation(settings)
    opts.TensorLocations.setWeightLocation(settings)


class Case:
    """One training. replicas: of each process. dtype: of the model and of what it is given. rounded: at random."""

    def __init__(
        self,
        replicas=1,
        optimizer=_sgd,
        accumulation=1,
        iterations=1,
        edit=None,
        dtype=torch.float32,
        rounded=False,
        **model,
    ):
        self.rounded = rounded
        self.replicas, self.optimizer, self.edit, self.model, self.dtype = replicas, optimizer, edit, model, dtype
        self.accumulation, self.iterations = accumulation, iterations

    def options(self, replicas):
        opts = poptorch.Options().replicationFactor(replicas).deviceIterations(self.iterations).randomSeed(7)
        opts.Training.gradientAccumulation(self.accumulation)
        opts.Precision.enableStochasticRounding(self.rounded)
        opts.outputMode(poptorch.OutputMode.All).autoRoundNumIPUs(True)
        opts.enforcePipelineMinimum(False)
        opts.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))
        if self.edit:
            self.edit(opts)
        return opts

    def batches(self, total):
        """[call][micro-batch, replica of all, row, feature] of x and of target."""
        draw = torch.Generator().manual_seed(3)
        shape = (CALLS, self.iterations * self.accumulation, total, ROWS)
        batches = torch.randn(*shape, 16, generator=draw), torch.randn(*shape, 4, generator=draw)
        return tuple(batch.to(self.dtype) for batch in batches)

    def train(self, opts, share, total):
        """Trains on the share (a slice of the replicas of all). Returns what a test compares."""
        torch.manual_seed(1)
        model = Net(**self.model).to(self.dtype)
        executor = poptorch.trainingModel(model, opts, self.optimizer(model.parameters()))
        outputs = []
        for x, target in zip(*self.batches(total), strict=True):
            outputs.append(executor(x[:, share].flatten(0, 2), target[:, share].flatten(0, 2)))
        executor.copyWeightsToHost()
        state = executor._executable.session.optimizerState()
        result = {
            "weights": {name: tensor.clone() for name, tensor in model.named_parameters()},
            "buffers": {name: tensor.clone() for name, tensor in model.named_buffers()},
            "outputs": outputs,
            "state": {name: tensor.clone() for name, tensor in state.items()},
        }
        executor.destroy()
        return result

    def together(self):
        """As one of the processes that the launcher started."""
        process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        opts = self.options(self.replicas)
        opts.Distributed.configureProcessId(process, processes)
        first = process * self.replicas
        return self.train(opts, slice(first, first + self.replicas), self.replicas * processes)

    def alone(self, processes):
        total = self.replicas * processes
        return self.train(self.options(total), slice(0, total), total)


def _adamw(parameters):
    return poptorch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, max_grad_norm=0.05)


def _pipelined(opts):
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))


def _sums(opts):
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)


def _scaled(opts):
    opts.Training.setAutomaticLossScaling(True)
    opts._Popart.set("automaticLossScalingSettings.updatePeriod", 2)


def _in_half(parameters, loss_scaling=1.0):
    return poptorch.optim.AdamW(parameters, lr=0.01, loss_scaling=loss_scaling, accum_type=torch.float16)


def _overflowing(parameters):
    return _in_half(parameters, 2.0**18)


CASES = {
    "sgd": Case(),
    # Sums of 8 MiB, cut into slices in the middle of a row: several rounds of messages.
    "large": Case(hidden=100_001, optimizer=lambda p: poptorch.optim.SGD(p, lr=1e-4)),
    "replicas": Case(replicas=2),
    "accumulation": Case(accumulation=3, iterations=2, replicas=2),
    "adamw_clipped": Case(optimizer=_adamw, accumulation=2),
    "lamb": Case(optimizer=lambda p: poptorch.optim.LAMB(p, lr=0.01), replicas=2),
    "rmsprop": Case(optimizer=lambda p: poptorch.optim.RMSprop(p, lr=0.01, momentum=0.5)),
    "pipeline": Case(accumulation=4, replicas=2, edit=_pipelined),
    "sharded_state": Case(replicas=2, optimizer=_adamw, edit=_shard),
    "sums": Case(replicas=2, edit=_sums),
    "dropout": Case(replicas=2, accumulation=2, iterations=2, dropout=0.5),
    "batch_norm": Case(replicas=2, accumulation=2, norm=True),
    "rounded": Case(accumulation=2, iterations=2, replicas=2, dtype=torch.half, rounded=True),
    "rounded_adamw": Case(accumulation=2, dtype=torch.half, optimizer=_adamw, rounded=True),
    "loss_scaling": Case(accumulation=2, iterations=3, replicas=2, dtype=torch.half, optimizer=_adamw, edit=_scaled),
    "loss_scaling_overflows": Case(iterations=3, dtype=torch.half, optimizer=_overflowing, edit=_scaled),
}
