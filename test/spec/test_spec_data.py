"""spec data.md, sections 1, 2 and 5: what a DataLoader yields."""

import inspect
import logging

import poptorch
import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, TensorDataset


def options(iterations=1, accumulation=1, replicas=1, group=1, process=(0, 1)):
    opts = poptorch.Options().deviceIterations(iterations).replicationFactor(replicas)
    opts.Training.gradientAccumulation(accumulation)
    opts.Distributed.configureProcessId(*process)
    if group != 1:
        opts.inputReplicaGrouping(group, poptorch.CommGroupType.Consecutive)
    return opts


def dataset(n=23):
    return TensorDataset(torch.arange(n), torch.arange(n) * 2.0)


def rows(loader):
    return [batch[0].tolist() for batch in loader]


class Stream(IterableDataset):
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return iter(torch.arange(float(self.n)))


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, poptorch.logger.name)
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.spec(
    "data/1/micro_batch",
    "data/1/batches_to_combine",
    "data/1/combined_batch_size",
    names=["DataLoader.combinedBatchSize"],
)
def test_a_batch_is_what_one_call_of_an_executor_takes():
    loader = poptorch.DataLoader(options(2, 3, 4, 2), dataset(100), batch_size=2)
    assert loader.combinedBatchSize == 2 * (2 * 3 * (4 // 2))
    assert [len(batch[0]) for batch in loader] == [24] * 4 and len(loader) == 4
    with pytest.raises(AttributeError):
        loader.combinedBatchSize = 3


@pytest.mark.spec("data/1/global_step_size", "data/1/per_weight_update")
def test_all_processes_together_take_the_global_step():
    opts = [options(2, 3, process=(p, 2)) for p in range(2)]
    firsts = [rows(poptorch.DataLoader(o, dataset(30), batch_size=2))[0] for o in opts]
    assert sum(len(first) for first in firsts) == 12 * 2
    assert not set(firsts[0]) & set(firsts[1])
    assert len(firsts[0]) // opts[0].device_iterations == 2 * 3  # samples of this process per weight update


@pytest.mark.spec(names=["poptorch.DataLoader"])
def test_the_signature_is_as_programs_inspect_it():
    parameters = list(inspect.signature(poptorch.DataLoader.__init__).parameters.values())[1:]
    assert [p.name for p in parameters] == (
        "options dataset batch_size shuffle num_workers drop_last persistent_workers auto_distributed_partitioning "
        "mode async_options rebatched_worker_size batch_sampler kwargs"
    ).split()
    defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}
    assert defaults["batch_size"] == 1 and defaults["drop_last"] is True and defaults["shuffle"] is None
    assert defaults["mode"] == poptorch.DataLoaderMode.Sync and defaults["persistent_workers"] is None
    assert issubclass(poptorch.DataLoader, torch.utils.data.DataLoader)


@pytest.mark.spec("data/2/options", names=["DataLoader.options", "DataLoader.terminate"])
def test_options_are_checked_and_frozen():
    for wrong in (None, {}, torch.nn.Linear(1, 1)):
        with pytest.raises(AssertionError):
            poptorch.DataLoader(wrong, dataset())
    opts = options()
    loader = poptorch.DataLoader(opts, dataset())
    assert loader.options is opts
    with pytest.raises(AttributeError):
        opts.deviceIterations(2)
    loader.terminate()
    assert len(rows(loader)) == 23  # terminate() has no effect on a synchronous loader


@pytest.mark.spec("data/2/batch_size")
def test_without_a_batch_size_samples_pass_through():
    loader = poptorch.DataLoader(options(2), dataset(5), batch_size=None)
    assert loader.combinedBatchSize is None and len(loader) == 5
    assert [batch[0].shape for batch in loader] == [torch.Size([])] * 5


@pytest.mark.spec("data/2/shuffle")
def test_shuffle():
    loader = poptorch.DataLoader(options(2), dataset(24), batch_size=2, shuffle=True)
    first, second = (torch.tensor(rows(loader)).flatten().tolist() for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(24)) and first != second
    assert torch.tensor(rows(poptorch.DataLoader(options(2), dataset(24), 2))).flatten().tolist() == list(range(24))
    with pytest.raises(ValueError):
        poptorch.DataLoader(options(), Stream(4), shuffle=True)


@pytest.mark.spec("data/2/drop_last", "data/2.1")
def test_the_last_batch_is_dropped_unless_asked_for(warnings):
    assert [len(b) for b in rows(poptorch.DataLoader(options(3), dataset(), 2))] == [6, 6, 6]
    assert not warnings()
    loader = poptorch.DataLoader(options(3), dataset(), 2, drop_last=False)
    assert [len(b) for b in rows(loader)] == [6, 6, 6, 5] and len(loader) == 4
    (text,) = warnings()
    assert "last tensor has 5 elements" in text
    poptorch.DataLoader(options(3), dataset(24), 2, drop_last=False)
    assert len(warnings()) == 1


@pytest.mark.spec("data/2/persistent_workers", "data/2/kwargs")
def test_persistent_workers_and_what_torch_is_given():
    assert not poptorch.DataLoader(options(), dataset()).persistent_workers
    assert poptorch.DataLoader(options(), dataset(), num_workers=2).persistent_workers
    loader = poptorch.DataLoader(options(), dataset(), num_workers=1, persistent_workers=False)
    assert not loader.persistent_workers and rows(loader) == rows(loader) == [[i] for i in range(23)]
    loader = poptorch.DataLoader(
        options(), dataset(4), 2, collate_fn=lambda items: torch.stack([i[1] for i in items]) + 100
    )
    assert [batch.tolist() for batch in loader] == [[100, 102], [104, 106]]
    sampler = torch.utils.data.SubsetRandomSampler([5, 7])
    loader = poptorch.DataLoader(options(), dataset(), 2, sampler=sampler)
    assert sorted(rows(loader)[0]) == [5, 7] and loader.sampler is sampler and loader.dataset.tensors[0].numel() == 23


@pytest.mark.spec(names=["poptorch.DataLoader"])
def test_batches_keep_the_form_of_samples():
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return {"a": torch.tensor(i), "b": (torch.ones(2, dtype=torch.half), i / 2)}

    (batch,) = poptorch.DataLoader(options(2), Rows(), batch_size=2)
    assert list(batch) == ["a", "b"] and batch["a"].tolist() == [0, 1, 2, 3]
    assert batch["b"][0].shape == (4, 2) and batch["b"][0].dtype == torch.half
    assert batch["b"][1].tolist() == [0, 0.5, 1, 1.5]


# Several processes ----------------------------------------------------------------------------------------------------
def shares(n, processes, batch_size=1, **kwargs):
    return [
        poptorch.DataLoader(options(2, process=(p, processes)), dataset(n), batch_size, **kwargs)
        for p in range(processes)
    ]


@pytest.mark.spec("data/2.2", names=["Distributed.configureProcessId"])
def test_each_process_loads_its_own_block():
    loaders = shares(26, 3, 2)
    assert [rows(loader) for loader in loaders] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[8, 9, 10, 11], [12, 13, 14, 15]],
        [[16, 17, 18, 19], [20, 21, 22, 23]],
    ]
    assert [len(loader) for loader in loaders] == [2, 2, 2]
    uneven = [sum(rows(loader), []) for loader in shares(26, 3, 2, drop_last=False)]
    assert [len(share) for share in uneven] == [9, 9, 8] and sum(uneven, []) == list(range(26))
    whole = [rows(loader) for loader in shares(8, 2, auto_distributed_partitioning=False)]
    assert whole[0] == whole[1] == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.spec("data/2.2")
def test_processes_shuffle_the_whole_data_set_alike():
    def loaders(workers):
        result = []
        for p in range(2):
            opts = options(2, process=(p, 2))
            opts.randomSeed(42)
            result.append(poptorch.DataLoader(opts, dataset(11), 2, shuffle=True, num_workers=workers))
        return result

    here = loaders(0)
    passes = [[sum(rows(loader), []) for loader in here] for _ in range(4)]
    generator = torch.Generator().manual_seed(42)
    for number, (first, second) in enumerate(passes):
        order = torch.randperm(11, generator=generator).tolist()
        start = 11 % 4 if number % 2 == 0 else 0  # of 11 samples, 2 * 4 are used
        assert first == order[start : start + 4] and second == order[start + 4 : start + 8]
    with_workers = loaders(1)  # whose data set was copied before the second pass began
    assert [[sum(rows(loader), []) for loader in with_workers] for _ in range(3)] == passes[:3]


@pytest.mark.spec("data/2.2", "data/2.3", "data/2/batch_sampler")
def test_what_several_processes_cannot_share():
    two = options(process=(0, 2))
    with pytest.raises(AssertionError):
        poptorch.DataLoader(two, dataset(), shuffle=True)  # without a seed
    with pytest.raises(AssertionError):
        poptorch.DataLoader(two, dataset(), batch_size=None)
    with pytest.raises(AssertionError):
        poptorch.DataLoader(two, Stream(9))
    sampler = BatchSampler(range(20), 2, True)
    with pytest.raises(poptorch.Error):
        poptorch.DataLoader(two, dataset(), batch_sampler=sampler)
    loader = poptorch.DataLoader(two, dataset(), batch_sampler=sampler, auto_distributed_partitioning=False)
    assert len(rows(loader)) == 10
    assert len(list(poptorch.DataLoader(two, Stream(9), 3, auto_distributed_partitioning=False))) == 3


# Iterable data sets and batch samplers --------------------------------------------------------------------------------
@pytest.mark.spec("data/2.3")
def test_iterable_data_sets(warnings):
    loader = poptorch.DataLoader(options(2), Stream(15), 2)
    assert [batch.tolist() for batch in loader][-1] == [8, 9, 10, 11] and len(list(loader)) == 3
    with pytest.raises(TypeError):
        len(loader)
    assert not warnings()
    loader = poptorch.DataLoader(options(), Stream(6), 4, num_workers=2)
    assert len(warnings()) == 1 and "2 times" in warnings()[0]
    assert len(list(loader)) == 2  # each worker drops its own incomplete batch

    class Sized(Stream):
        def __len__(self):
            return self.n

    assert len(poptorch.DataLoader(options(2), Sized(15), 2)) == 3


@pytest.mark.spec("data/2.4", "data/2/batch_sampler")
def test_batch_samplers_are_combined(warnings):
    sampler = BatchSampler(range(20), batch_size=2, drop_last=True)
    opts = options(2, 2)
    loader = poptorch.DataLoader(opts, dataset(20), batch_sampler=sampler)
    assert loader.combinedBatchSize == 8 and len(loader) == 10
    assert rows(loader) == [list(range(8)), list(range(8, 16))] and not warnings()
    loader = poptorch.DataLoader(opts, dataset(20), batch_sampler=sampler, drop_last=False)
    assert [len(batch) for batch in rows(loader)] == [8, 8, 4] and len(warnings()) == 1
    unsized = poptorch.DataLoader(opts, dataset(20), batch_sampler=[[3], [1], [4], [2], [5]], drop_last=False)
    assert unsized.combinedBatchSize == 4 and rows(unsized) == [[3, 1, 4, 2], [5]] and len(warnings()) == 2

    class Endless:
        def __iter__(self):
            return iter([[0, 1]] * 4)

    poptorch.DataLoader(opts, dataset(20), batch_sampler=Endless(), drop_last=False)
    assert len(warnings()) == 3 and "no length" in warnings()[-1]
    for wrong in ({"batch_size": 2}, {"shuffle": True}):
        with pytest.raises(poptorch.Error):
            poptorch.DataLoader(opts, dataset(), batch_sampler=sampler, **wrong)


@pytest.mark.spec("data/2.4")
def test_batches_of_custom_types_are_combined():
    class Pair:
        def __init__(self, a, b):
            self.a, self.b = a, b

    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.a
            yield struct.b

        def reconstruct(self, original_structure, tensor_iterator):
            return Pair(next(tensor_iterator), next(tensor_iterator))

    poptorch.registerCustomArgParser(Pair, Parser())
    try:
        (batch,) = poptorch.DataLoader(
            options(2),
            dataset(4),
            batch_sampler=BatchSampler(range(4), 2, True),
            collate_fn=lambda items: Pair(*(torch.stack(column) for column in zip(*items, strict=True))),
        )
        assert batch.a.tolist() == [0, 1, 2, 3] and batch.b.tolist() == [0, 2, 4, 6]
    finally:
        poptorch.registerCustomArgParser(Pair, None)


# With executors -------------------------------------------------------------------------------------------------------
@pytest.mark.spec("data/5")
def test_loaders_feed_executors():
    opts = options(3)
    model = poptorch.inferenceModel(torch.nn.Linear(1, 2), opts)
    data = TensorDataset(torch.arange(14.0).view(14, 1))
    results = [(batch, model(batch)) for (batch,) in poptorch.DataLoader(opts, data, 2)]
    assert len(results) == 2
    for batch, result in results:
        assert result.shape == (6, 2) and torch.equal(result[4:], model.model(batch[4:]))
    *_, (last,) = poptorch.DataLoader(opts, data, 2, drop_last=False)
    with pytest.raises((poptorch.Error, AssertionError)):
        model(last)
    padded = torch.cat([last, torch.zeros(6 - len(last), 1)])
    assert torch.equal(model(padded)[: len(last)], model.model(last))
