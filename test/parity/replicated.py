"""Replicas in plain PyTorch: the same arithmetic in the same order."""

import copy

import torch


def copies(model, replicas):
    """Models that share their parameters; each has buffers of its own, the first those of `model`."""
    shared = {id(parameter): parameter for parameter in model.parameters()}
    return [model] + [copy.deepcopy(model, dict(shared)) for _ in range(replicas - 1)]


def consecutive(replica, replicas, size):
    return replica // size


def orthogonal(replica, replicas, size):
    return replica % (replicas // size)


def step(models, optimizer, batch, rows, accumulation, *, size=1, group=consecutive, mean=True):
    """One call. Micro-batches run in their order, replica fastest; the gradients of each replica are summed first.

    Args:
        models: one per replica.
        batch: tensors of deviceIterations * accumulation * (replicas / size) micro-batches of `rows` rows.
    Returns: [replica][micro-batch] -> (output, loss).
    """
    replicas = len(models)
    parts = replicas // size
    count = len(batch[0]) // rows // parts
    parameters = [parameter for parameter in models[0].parameters() if parameter.requires_grad]
    seed = torch.tensor(1.0 / (accumulation * replicas) if mean else 1.0, device=batch[0].device)
    results = [[] for _ in models]
    for start in range(0, count, accumulation):
        sums = [None] * replicas
        for j in range(start, start + accumulation):
            for r, model in enumerate(models):
                k = j * parts + group(r, replicas, size)
                output, loss = model(*(tensor[k * rows : (k + 1) * rows] for tensor in batch))
                gradients = torch.autograd.grad(loss, parameters, seed)
                results[r].append((output.detach(), loss.detach()))
                if sums[r] is None:
                    sums[r] = [gradient.clone() for gradient in gradients]
                else:
                    for total, gradient in zip(sums[r], gradients, strict=True):
                        total.add_(gradient)
        for others in sums[1:]:
            for total, gradient in zip(sums[0], others, strict=True):
                total.add_(gradient)
        for parameter, total in zip(parameters, sums[0], strict=True):
            parameter.grad = total
        optimizer.step()
    return results
