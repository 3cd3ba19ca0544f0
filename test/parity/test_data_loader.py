"""Batches of abele.DataLoader are those of torch's with the same arguments, and so are the random numbers after them:
in every epoch, with workers or without, from the program's generator or torch's own."""

import random

import abele
import numpy
import pytest
import torch
from torch.utils import data

EPOCHS = 3


class Drawing(data.Dataset):
    """A sample is its index and what the process that loads it draws: by torch, Python and numpy."""

    def __len__(self):
        return 13

    def __getitem__(self, index):
        return torch.tensor([index, torch.rand(()).item(), random.random(), numpy.random.rand()], dtype=torch.float64)


class Stream(data.IterableDataset):
    """Each worker yields its share, and draws."""

    def __iter__(self):
        worker = data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        for index in range(start, 12, step):
            yield torch.tensor([index, torch.rand(()).item()], dtype=torch.float64)


def seeded_by_seed(worker):
    """What torch's page on reproducibility advises."""
    random.seed(torch.initial_seed() % 2**32)


def arguments(kind, generator):
    """A data set, and the arguments that give this order of samples."""
    samples = Drawing()
    if kind == "weighted":
        weights = torch.arange(1.0, 14.0)
        sampler = data.WeightedRandomSampler(weights, 10, generator=generator)
        return samples, {"batch_size": 4, "sampler": sampler}
    if kind == "batch sampler":
        sampler = data.RandomSampler(samples, generator=generator)
        return samples, {"batch_sampler": data.BatchSampler(sampler, 3, True)}
    if kind == "stream":
        return Stream(), {"batch_size": 2, "worker_init_fn": seeded_by_seed}
    return samples, {"batch_size": 3, "shuffle": kind == "shuffled", "worker_init_fn": seeded_by_seed}


def epochs(make, kind, has_generator, broken_off, **settings):
    """All batches of each epoch, and what the generators of this process give after it."""
    torch.manual_seed(5)
    random.seed(6)
    numpy.random.seed(7)
    generator = torch.Generator().manual_seed(8) if has_generator else None
    samples, given = arguments(kind, generator)
    loader = make(samples, drop_last=kind != "batch sampler", generator=generator, **given, **settings)
    seen = []
    for epoch in range(EPOCHS):
        batches = []
        for number, batch in enumerate(loader):
            batches.append(batch.tolist())
            if broken_off and epoch == 0 and number == 1:
                break
        behind = [torch.rand(()).item(), random.random(), numpy.random.rand()]
        seen.append((batches, behind, None if generator is None else torch.rand((), generator=generator).item()))
    return seen


def ours(samples, **given):
    return abele.DataLoader(abele.Options(), samples, **given)


def theirs(samples, **given):
    return data.DataLoader(samples, **given)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", ["in order", "shuffled", "weighted", "batch sampler", "stream"])
@pytest.mark.parametrize("has_generator", [False, True], ids=["default", "generator"])
def test_batches_are_those_of_torch(kind, workers, has_generator):
    settings = {"kind": kind, "has_generator": has_generator, "num_workers": workers, "broken_off": kind == "shuffled"}
    expected = epochs(theirs, **settings)
    assert epochs(ours, **settings) == expected
    assert expected[1][0] != expected[2][0]  # each epoch has its own numbers


@pytest.mark.parametrize("kind", ["shuffled", "stream"])
def test_workers_persist_where_both_are_told(kind):
    settings = {"kind": kind, "has_generator": True, "num_workers": 2, "persistent_workers": True, "broken_off": False}
    assert epochs(ours, **settings) == epochs(theirs, **settings)
