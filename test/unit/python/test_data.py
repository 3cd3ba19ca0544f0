"""The synchronous DataLoader. The asynchronous one: test/spec/test_spec_data_async.py."""

import poptorch
import pytest
import torch


def dataset(n=23):
    return torch.utils.data.TensorDataset(torch.arange(n), torch.arange(n) * 2.0)


def options(**values):
    opts = poptorch.Options().deviceIterations(values.get("iterations", 2))
    opts.Training.gradientAccumulation(values.get("accumulation", 3))
    return opts


def test_batches_are_what_one_call_takes():
    opts = options()
    loader = poptorch.DataLoader(opts, dataset(), batch_size=2)
    assert loader.combinedBatchSize == loader.batch_size == 12 and len(loader) == 1
    (batch,) = list(loader)
    assert torch.equal(batch[0], torch.arange(12))
    assert [len(b[0]) for b in poptorch.DataLoader(opts, dataset(), 2, drop_last=False)] == [12, 11]
    with pytest.raises(AttributeError):
        opts.deviceIterations(1)
    assert list(loader) and list(loader)


def test_unbatched_and_dicts():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, i):
            return {"a": torch.tensor(i), "b": torch.ones(2)}

    loader = poptorch.DataLoader(options(), Rows(), batch_size=None)
    assert loader.combinedBatchSize is None and len(list(loader)) == 12
    (batch,) = poptorch.DataLoader(options(), Rows(), batch_size=2)
    assert batch["b"].shape == (12, 2)


def test_shuffle_visits_everything_and_samplers_pass_through():
    values = torch.cat([b[0] for b in poptorch.DataLoader(options(), dataset(24), batch_size=2, shuffle=True)])
    assert sorted(values.tolist()) == list(range(24)) and values.tolist() != list(range(24))
    sampler = torch.utils.data.SequentialSampler(dataset(24))
    assert torch.equal(next(iter(poptorch.DataLoader(options(), dataset(24), 4, sampler=sampler)))[0], torch.arange(24))


def test_batch_samplers_are_combined():
    sampler = torch.utils.data.BatchSampler(range(20), batch_size=2, drop_last=True)
    loader = poptorch.DataLoader(options(accumulation=2), dataset(20), batch_sampler=sampler)
    assert loader.combinedBatchSize == 8 and [b[0].tolist() for b in loader] == [list(range(8)), list(range(8, 16))]
    loader = poptorch.DataLoader(options(accumulation=2), dataset(20), batch_sampler=sampler, drop_last=False)
    assert [len(b[0]) for b in loader] == [8, 8, 4]
    for wrong in ({"batch_size": 2}, {"shuffle": True}):
        with pytest.raises(poptorch.Error):
            poptorch.DataLoader(options(), dataset(), batch_sampler=sampler, **wrong)


def test_iterable_data_sets():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(torch.arange(14.0))

    loader = poptorch.DataLoader(options(), Stream(), batch_size=2)
    assert [len(b) for b in loader] == [12]
    with pytest.raises(TypeError):
        len(loader)


def test_what_is_refused():
    with pytest.raises(AssertionError):
        poptorch.DataLoader(None, dataset())
