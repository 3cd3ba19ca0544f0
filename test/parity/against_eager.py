"""A compiled step beside the same step of plain PyTorch. STEPS: of a training; MICRO_BATCH: rows of every input."""

import poptorch
import torch

SEED, MICRO_BATCH, STEPS = 7, 2, 5
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


class Odd(torch.optim.SGD):
    """It adds 1 to the last parameter, too, which no device does."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            self.param_groups[0]["params"][-1].add_(1)


def cut(model, num_stages):
    """Begins stage s at its share of the parts."""
    for stage in range(num_stages):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // num_stages], ipu_id=stage)


def options(strategy, accumulation, iterations=1):
    opts = poptorch.Options().deviceIterations(iterations).randomSeed(SEED).autoRoundNumIPUs(True)
    opts.outputMode(poptorch.OutputMode.All).setExecutionStrategy(strategy())
    opts.Training.gradientAccumulation(accumulation)
    opts.threadsPerDevice(torch.get_num_threads())
    return opts


def eager(model, optimizer, batch, accumulation, micro_batch=MICRO_BATCH):
    """The same step in plain PyTorch. Returns the outputs and losses of its micro-batches."""
    outputs, losses = [], []
    for start in range(0, len(batch[0]), micro_batch * accumulation):
        optimizer.zero_grad()
        for k in range(accumulation):
            rows = slice(start + k * micro_batch, start + (k + 1) * micro_batch)
            output, loss = model(*(tensor[rows] for tensor in batch))
            (loss / accumulation).backward()
            outputs.append(output.detach())
            losses.append(loss.detach())
        optimizer.step()
    return torch.cat(outputs), torch.stack(losses)


def require_same(ours, theirs):
    for (name, a), b in zip(ours.items(), theirs.values(), strict=True):
        assert torch.equal(a, b), f"{name} differs by {(a - b).abs().max()}"


def train_equally(executor, model, reference, optimizer, accumulation, iterations=1, steps=STEPS):
    """Trains the executor, made of the model, and in plain PyTorch the reference, a copy of it. Every output, loss and
    tensor of their states must be the same."""
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * accumulation * iterations) for _ in range(steps)]
    ours = [executor(*batch) for batch in batches]
    torch.manual_seed(SEED)
    for (output, loss), batch in zip(ours, batches, strict=True):
        expected_output, expected_loss = eager(reference, optimizer, batch, accumulation)
        assert torch.equal(loss.reshape(-1), expected_loss) and torch.equal(output, expected_output)
    # Running statistics are among them: updated in the order of the micro-batches.
    require_same(model.state_dict(), reference.state_dict())
