"""Trainings of replicas whose stages lie in several processes, and in one process alone."""

import math
import os

import poptorch
import torch
import torch.nn.functional as F

ROWS, CALLS, WIDTH, STAGES = 4, 3, 16, 4


class Net(torch.nn.Module):
    """Four blocks on 4 devices, or on fewer. places: the ipu_id of each.

    tied: the last one reads the first one's weight; skip: it reads what the first one made.
    """

    def __init__(self, dropout=0.0, norm=False, tied=False, skip=False, devices=STAGES, width=WIDTH, places=None):
        super().__init__()
        self.tied, self.skip = tied, skip
        self.places = places or [block * devices // STAGES for block in range(STAGES)]
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(STAGES))
        self.norm = torch.nn.BatchNorm1d(width) if norm else torch.nn.Identity()
        self.dropout = torch.nn.Dropout(dropout)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width))

    def start(self, block):
        poptorch.Block.start(str(block), ipu_id=self.places[block])

    def forward(self, x, target=None):
        self.start(0)
        x = early = torch.tanh(self.layers[0](x)) * self.scale
        self.start(1)
        x = torch.tanh(self.norm(self.layers[1](x)))
        self.start(2)
        x = self.dropout(torch.tanh(self.layers[2](x)))
        self.start(3)
        x = self.layers[3](x) * self.scale
        if self.skip:
            x = x * early
        if self.tied:
            x = F.linear(x, self.layers[0].weight)
        if target is None:
            return x
        return x, poptorch.identity_loss(F.mse_loss(x, target), reduction="mean")


def _sgd(parameters):
    return poptorch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def _pipeline(schedule):
    def edit(opts):
        strategy = poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu).schedule(schedule)
        opts.setExecutionStrategy(strategy)

    return edit


def _sharded(opts):
    opts.setExecutionStrategy(poptorch.ShardedExecution(poptorch.AutoStage.SameAsIpu))


def _recomputed(opts):
    opts._Popart.set("autoRecomputation", 3)


def _off_chip(opts):
    location = poptorch.TensorLocationSettings().useOnChipStorage(False).minElementsForOffChip(0)
    for use in ("Weight", "Optimizer", "Accumulator", "Activation"):
        getattr(opts.TensorLocations, f"set{use}Location")(location)


def _deal(opts):
    settings = poptorch.TensorLocationSettings()
    settings.useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(2)
    opts.TensorLocations.setOptimizerLocation(settings)
    opts.TensorLocations.setWeightLocation(settings)


def _deal_states(opts):
    settings = poptorch.TensorLocationSettings()
    opts.TensorLocations.setOptimizerLocation(
        settings.useReplicatedTensorSharding(True).minElementsForReplicatedTensorSharding(2)
    )


class Case:
    """One training, or inference. replicas: of all processes; devices: of each; group: of them for one block.

    spread: every replica lies in all processes; else in as few as their numbers allow.
    dtype: of the model and of what it is given; rounded: results of float16 at random.
    """

    def __init__(
        self,
        optimizer=_sgd,
        accumulation=7,
        iterations=1,
        edit=None,
        training=True,
        replicas=1,
        devices=STAGES,
        spread=False,
        group=1,
        dtype=torch.float32,
        rounded=False,
        **model,
    ):
        self.rounded = rounded
        self.dtype = dtype
        self.replicas, self.devices, self.spread = replicas, devices, spread
        self.group, self.width = group, model.get("width", WIDTH)
        model["devices"] = devices // group
        self.optimizer, self.edit, self.training, self.model = optimizer, edit, training, model
        self.accumulation, self.iterations = accumulation, iterations

    def options(self):
        opts = poptorch.Options().deviceIterations(self.iterations).randomSeed(7).autoRoundNumIPUs(True)
        opts.Training.gradientAccumulation(self.accumulation)
        opts.replicationFactor(self.replicas)
        opts.Precision.enableStochasticRounding(self.rounded)
        opts.outputMode(poptorch.OutputMode.All)
        opts.enforcePipelineMinimum(False)
        opts.threadsPerDevice(1)
        if "places" not in self.model:
            opts.tensorParallel(self.group)
        if self.edit:
            self.edit(opts)
        return opts

    def batches(self):
        draw = torch.Generator().manual_seed(3)
        rows = self.iterations * self.accumulation * self.replicas * ROWS
        return [
            tuple(torch.randn(rows, self.width, generator=draw).to(self.dtype) for _ in range(2)) for _ in range(CALLS)
        ]

    def share(self, tensor, process, processes):
        """The rows of a process's replicas, of those of all."""
        groups = 1 if self.spread else math.gcd(processes, self.replicas)
        own = self.replicas // groups
        first = process * groups // processes * own
        rows = tensor.reshape(self.iterations * self.accumulation, self.replicas, -1, *tensor.shape[1:])
        return rows[:, first : first + own].flatten(0, 2)

    def run(self, opts, process=0, processes=1):
        torch.manual_seed(1)
        model = Net(**self.model).to(self.dtype)
        if not self.training:
            executor = poptorch.inferenceModel(model.eval(), opts)
            return {
                "outputs": [executor(self.share(x, process, processes)) for x, _ in self.batches()],
                "weights": {},
                "state": {},
            }
        executor = poptorch.trainingModel(model, opts, self.optimizer(model.parameters()))
        outputs = [executor(*(self.share(x, process, processes) for x in batch)) for batch in self.batches()]
        executor.copyWeightsToHost()
        state = executor._executable.session.optimizerState()
        result = {
            "outputs": outputs,
            "weights": {name: tensor.clone() for name, tensor in model.state_dict().items()},
            "state": {name: tensor.clone() for name, tensor in state.items()},
            "report": [stage["mapped_bytes"] for stage in executor._executable.session.report()["stages"]],
        }
        executor.destroy()
        return result

    def together(self):
        """As one of the processes that the launcher started. Those of one replica are given the same batch."""
        process, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        opts = self.options()
        opts.Distributed.configureProcessId(process, processes).devicesPerProcess(
            self.devices * self.replicas // processes
        )
        if self.spread:
            opts.Distributed.processesPerReplica(processes)
        return self.run(opts, process, processes)

    def alone(self):
        return self.run(self.options())


def _clipped(parameters):
    return poptorch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, max_grad_norm=0.05)


def _scaled(opts):
    opts.Training.setAutomaticLossScaling(True)
    opts._Popart.set("automaticLossScalingSettings.updatePeriod", 2)


CASES = {
    "1f1b": Case(edit=_pipeline("1f1b")),
    "gpipe": Case(edit=_pipeline("gpipe"), iterations=2),
    "zero-bubble": Case(edit=_pipeline("zero-bubble")),
    "sharded": Case(edit=_sharded, accumulation=2),
    "recomputed": Case(edit=_recomputed),
    "tied": Case(tied=True),
    "skip": Case(skip=True),
    "clipped": Case(optimizer=_clipped, tied=True),
    "dropout": Case(dropout=0.5, iterations=2, accumulation=3),
    "batch_norm": Case(norm=True),
    "two-replicas": Case(replicas=2, devices=2, accumulation=3, iterations=2),
    "two-replicas-tied": Case(replicas=2, devices=2, accumulation=3, tied=True),
    "two-replicas-clipped": Case(replicas=2, devices=2, accumulation=3, tied=True, optimizer=_clipped),
    "two-replicas-dropout": Case(replicas=2, devices=2, accumulation=3, dropout=0.5),
    "two-replicas-inference": Case(replicas=2, devices=2, accumulation=1, iterations=5, training=False),
    "off-chip": Case(edit=_off_chip),
    "inference": Case(training=False, accumulation=1, iterations=5),
    # Processes that have whole blocks, and processes that share a block. Layers are wide enough to be divided.
    "divided": Case(group=2, width=256, tied=True, dropout=0.5),
    "divided-block": Case(group=4, width=256, norm=True, accumulation=2, optimizer=_clipped),
    "divided-lists": Case(group=2, width=256, places=[[0, 2], [0, 2], [1, 3], [1, 3]], tied=True, dropout=0.5),
    "divided-recomputed": Case(group=4, width=256, accumulation=2, edit=_recomputed),
    "divided-off-chip": Case(group=4, width=256, accumulation=2, edit=_off_chip),
    "divided-inference": Case(group=4, width=256, accumulation=1, iterations=2, training=False),
    # Each process has the same stages of both replicas.
    "spread": Case(replicas=2, spread=True, iterations=2, accumulation=3),
    "spread-zero-bubble": Case(replicas=2, spread=True, edit=_pipeline("zero-bubble")),
    "spread-tied": Case(replicas=2, spread=True, accumulation=3, tied=True),
    "spread-skip": Case(replicas=2, spread=True, accumulation=3, skip=True, edit=_recomputed),
    "spread-clipped": Case(replicas=2, spread=True, accumulation=3, tied=True, optimizer=_clipped),
    "spread-dealt": Case(replicas=2, spread=True, accumulation=3, tied=True, optimizer=_clipped, edit=_deal),
    "spread-dealt-states": Case(replicas=2, spread=True, accumulation=3, tied=True, edit=_deal_states),
    "spread-dropout": Case(replicas=2, spread=True, accumulation=3, dropout=0.5),
    "spread-inference": Case(replicas=2, spread=True, accumulation=1, iterations=5, training=False),
    "spread-sharded": Case(replicas=2, spread=True, accumulation=2, edit=_sharded),
    # What is rounded at random depends on the schedule, which is chosen by estimates.
    "rounded": Case(dtype=torch.half, tied=True, iterations=2, rounded=True, edit=_pipeline("1f1b")),
    "spread-rounded": Case(
        dtype=torch.half,
        replicas=2,
        spread=True,
        tied=True,
        optimizer=_clipped,
        rounded=True,
        edit=_pipeline("zero-bubble"),
    ),
    "loss-scaling": Case(dtype=torch.half, iterations=3, edit=_scaled),
    "two-replicas-loss-scaling": Case(dtype=torch.half, replicas=2, devices=2, iterations=3, edit=_scaled),
    "two-replicas-divided": Case(replicas=2, devices=2, group=2, width=256, accumulation=3, tied=True),
    "spread-divided": Case(replicas=2, spread=True, group=2, width=256, accumulation=3, tied=True, edit=_deal),
    "spread-loss-scaling": Case(
        dtype=torch.half, replicas=2, spread=True, iterations=3, optimizer=_clipped, edit=_scaled
    ),
}
# Processes that are neither a divisor nor a multiple of the replicas: each has stages of several replicas.
UNEVEN = {
    "three-processes": Case(replicas=2, devices=3, accumulation=3, tied=True, optimizer=_clipped),
    "six-replicas": Case(replicas=6, devices=2, accumulation=2, tied=True, dropout=0.5),
}
