"""A published model class as a pipeline beside eager PyTorch: losses, outputs, weights and buffers have the same bits.

A table is a list of Rows; its test file calls check_training and check_inference on each. docs/models.md is made of the
same rows (scripts/gen_models.py), so that every exception there is one that a test sees.
"""

import copy
import dataclasses
import typing

SEED, MICRO_BATCHES, STEPS = 7, 3, 2


@dataclasses.dataclass
class Refused:
    """A row that is no pipeline, and why. code: of the error that names it; "" if eager PyTorch itself cannot."""

    code: str
    reason: str


@dataclasses.dataclass
class Row:
    """One class. make: the model, of random weights. batch: the named arguments of `rows` rows. loss: of what forward
    returned and the batch; None: its own loss. stages: of the pipeline."""

    name: str
    make: typing.Callable
    batch: typing.Callable
    stages: int
    rows: int = 2
    loss: typing.Callable | None = None
    training: Refused | None = None
    inference: Refused | None = None
    labels: tuple = ("labels",)  # arguments that inference does without
    trusts_reads: bool = False  # Options.trustReads: it reads what is the same in every micro-batch


def tensors_of(value):
    """The tensors of a result, in its order; caches and other objects are left out."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for each in value for tensor in tensors_of(each)]


def _step_of(row, model):
    """The model and its objective as one module."""
    import abele
    import torch

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, **batch):
            result = self.model(**batch)
            if not self.training:
                return tensors_of(result)
            loss = row.loss(result, batch) if row.loss else result.loss
            return [abele.identity_loss(loss, reduction="none"), *tensors_of(result)]

    return Step()


def _options(row):
    import abele
    import torch

    options = abele.Options().randomSeed(SEED).outputMode(abele.OutputMode.All)
    options.setExecutionStrategy(abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(row.stages))
    options.threadsPerDevice(torch.get_num_threads())
    return options.trustReads(row.trusts_reads)


def _part(batch, k):
    return {name: value.chunk(MICRO_BATCHES)[k] for name, value in batch.items()}


def _joined(parts):
    """The results of micro-batches as one call returns them."""
    import torch

    return [torch.cat(each) if each[0].dim() else torch.stack(each) for each in zip(*parts, strict=True)]


def _require_same(ours, theirs, names=None):
    import torch

    assert len(ours) == len(theirs)
    for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = a.detach().reshape(b.shape).to(b.dtype), b.detach()
        same = torch.equal(torch.isnan(a), torch.isnan(b)) and torch.equal(a.nan_to_num(), b.nan_to_num())
        assert same, f"{names[index] if names else index}: {(a - b).abs().max()}"


def _eager_step(step, optimizer, batch, row):
    results = []
    optimizer.zero_grad()
    for k in range(MICRO_BATCHES):
        loss, *outputs = step(**_part(batch, k))
        (loss / MICRO_BATCHES).backward()
        results.append([loss.detach(), *(output.detach() for output in outputs)])
    optimizer.step()
    return _joined(results)


def _made(row, updates=STEPS):
    import torch

    torch.manual_seed(0)
    model = row.make()
    torch.manual_seed(1)
    return model, [row.batch(row.rows * MICRO_BATCHES) for _ in range(updates)]


def check_training(row, updates=STEPS, group=1, turns=1):
    """Updates of three micro-batches. group: devices that share a stage. turns: devices that take turns at them.

    Returns: the device of each part of the pipeline.
    """
    import abele
    import torch

    model, batches = _made(row, updates)
    step = _step_of(row, model).train()
    reference = copy.deepcopy(step)
    options = _options(row).tensorParallel(group).dataParallel(turns)
    options.Training.gradientAccumulation(MICRO_BATCHES)
    make_optimizer = lambda module: torch.optim.AdamW(module.parameters(), lr=1e-3)  # noqa: E731
    executor = abele.trainingModel(step, options, make_optimizer(step))
    try:
        ours = [executor(**batch) for batch in batches]
        devices = executor._executable.session.stageDevices()
        torch.manual_seed(SEED)
        optimizer = make_optimizer(reference)
        for result, batch in zip(ours, batches, strict=True):
            _require_same(result, _eager_step(reference, optimizer, batch, row))
        executor.copyWeightsToHost()
    finally:
        executor.destroy()
    names, states = list(reference.state_dict()), (step.state_dict(), reference.state_dict())
    _require_same(*(list(state.values()) for state in states), names)
    assert len(devices) == row.stages or group > 1
    return devices


def check_inference(row):
    """One call of three micro-batches."""
    import abele
    import torch

    model, [batch, *_] = _made(row)
    batch = {name: value for name, value in batch.items() if name not in row.labels}
    step = _step_of(row, model).eval()
    executor = abele.inferenceModel(step, _options(row).deviceIterations(MICRO_BATCHES))
    try:
        ours = executor(**batch)
        stages = len(executor._executable.session.stageDevices())
    finally:
        executor.destroy()
    with torch.no_grad():
        torch.manual_seed(SEED)
        expected = _joined([step(**_part(batch, k)) for k in range(MICRO_BATCHES)])
    _require_same(ours, expected)
    assert stages == row.stages


def check(row, mode):
    """mode: "training" or "inference". A row that says it is refused must be, by that error."""
    import pytest

    run = {"training": check_training, "inference": check_inference}[mode]
    refused = getattr(row, mode)
    if refused is None:
        return run(row)
    with pytest.raises(Exception) as caught:
        run(row)
    assert str(caught.value).startswith(refused.code) and not isinstance(caught.value, AssertionError)
