"""spec data.md, sections 3 and 4: asynchronous loaders. Fork is used where the way to the worker is not what is tested:
the others start an interpreter that imports torch."""

import multiprocessing
import os
import re
import signal

import poptorch
import pytest
import torch
from poptorch import AsynchronousDataAccessor, DataLoader, DataLoaderMode, SharingStrategy
from torch.utils.data import BatchSampler, IterableDataset, TensorDataset

FORK = {"sharing_strategy": SharingStrategy.Fork}


def memory_of_the_dead():
    """Names of shared memory that torch made in processes which have ended."""
    names = os.listdir("/dev/shm") if os.path.isdir("/dev/shm") else []
    owners = {name: re.match(r"torch_(\d+)_", name) for name in names}
    return {name for name, owner in owners.items() if owner and not os.path.exists(f"/proc/{owner[1]}")}


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    before = memory_of_the_dead()
    yield
    assert not multiprocessing.active_children() and not memory_of_the_dead() - before


@pytest.fixture
def accessor():
    made = []

    def make(source, **kwargs):
        made.append(AsynchronousDataAccessor(source, **{**FORK, **kwargs}))
        return made[-1]

    yield make
    for one in made:
        one.terminate()


@pytest.fixture
def loader():
    made = []

    def make(opts, source, *args, mode=DataLoaderMode.Async, **kwargs):
        kwargs.setdefault("async_options", FORK)
        made.append(DataLoader(opts, source, *args, mode=mode, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.terminate()


def options(iterations=2):
    return poptorch.Options().deviceIterations(iterations)


def dataset(n=23):
    return TensorDataset(torch.arange(n), torch.arange(n) * 2.0)


def rows(source):
    return [batch[0].tolist() for batch in source]


def scalars(n):
    return list(torch.arange(n).unbind())


class Stream(IterableDataset):
    """Every worker yields its share."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        start, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return iter(torch.arange(start, self.n, step))


# Modes ----------------------------------------------------------------------------------------------------------------
@pytest.mark.spec("data/3/Sync", "data/3/Async", "data/3/AsyncRebatched", names=["poptorch.DataLoaderMode"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_all_modes_give_the_same_batches(loader, drop_last):
    expected = [list(range(i, i + 4)) for i in range(0, 20, 4)] + ([] if drop_last else [[20, 21, 22]])
    for mode, size in [(0, None), (1, None), (2, None), (2, 1), (2, 3)]:
        made = loader(
            options(), dataset(), 2, mode=DataLoaderMode(mode), drop_last=drop_last, rebatched_worker_size=size
        )
        assert rows(made) == rows(made) == expected and len(made) == len(expected) and made.combinedBatchSize == 4


@pytest.mark.spec("data/3/Async", "data/3/AsyncRebatched", "data/2.3")
def test_iterable_data_sets_with_several_workers(loader):
    kwargs = {"num_workers": 2, "worker_init_fn": lambda _: None}
    dropped = [b.tolist() for b in loader(options(), Stream(26), 2, **kwargs)]
    assert [len(b) for b in dropped] == [4] * 6  # 13 samples for each worker: one is left over in each
    whole = [b.tolist() for b in loader(options(), Stream(26), 2, mode=DataLoaderMode.AsyncRebatched, **kwargs)]
    assert [len(b) for b in whole] == [4] * (26 // 4) and len(set(sum(whole, []))) == 24


@pytest.mark.spec("data/2.4", "data/3/AsyncRebatched")
@pytest.mark.parametrize("drop_last", [True, False])
def test_batch_samplers_in_all_modes(loader, drop_last):
    def make(mode):
        sampler = BatchSampler(range(20), batch_size=3, drop_last=False)  # 7 batches, the last one has 2
        return loader(options(2), dataset(20), batch_sampler=sampler, mode=mode, drop_last=drop_last)

    expected = [list(range(i, i + 6)) for i in (0, 6, 12)] + ([] if drop_last else [[18, 19]])
    sync, background, rebatched = (make(mode) for mode in DataLoaderMode)
    assert rows(sync) == rows(background) == rows(rebatched) == rows(rebatched) == expected
    assert len(sync) == 7 and len(rebatched) == len(expected)


@pytest.mark.spec("data/2.4", "data/3/Async")
def test_a_full_group_may_end_with_a_short_batch_in_all_modes(loader):
    for mode in DataLoaderMode:
        sampler = BatchSampler(range(11), batch_size=2, drop_last=False)  # 6 batches, the last one has 1
        found = rows(loader(options(2), dataset(11), batch_sampler=sampler, mode=mode))
        assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]], mode


class StartMethod(torch.utils.data.Dataset):
    """Element i is the number of the way in which the process that loads it starts others."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.tensor(multiprocessing.get_all_start_methods().index(multiprocessing.get_start_method()))


@pytest.mark.spec("data/4/process", names=["poptorch.SharingStrategy"])
@pytest.mark.parametrize("strategy", list(SharingStrategy))
def test_workers_of_torch_are_started_as_in_this_process(loader, strategy):
    ours = multiprocessing.get_all_start_methods().index(multiprocessing.get_start_method())
    (found,) = loader(options(), StartMethod(), async_options={"sharing_strategy": strategy})
    assert found.tolist() == [ours, ours]


@pytest.mark.spec("data/3/Async")
def test_a_loader_that_nobody_names_lives_as_long_as_its_pass():
    batches = iter(DataLoader(options(), dataset(8), mode=DataLoaderMode.Async, async_options=FORK))
    assert rows(batches) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@pytest.mark.spec("data/2/async_options", "data/2/rebatched_worker_size")
def test_what_asynchronous_loaders_refuse():
    with pytest.raises(AssertionError):
        DataLoader(options(), dataset(), mode=DataLoaderMode.Async, async_options={"rebatched_size": 2})
    with pytest.raises(AssertionError):
        DataLoader(options(), dataset(), mode=DataLoaderMode.AsyncRebatched, rebatched_worker_size=3)
    with pytest.raises(TypeError):
        DataLoader(options(), dataset(), mode=DataLoaderMode.Async, async_options={"bufer_size": 2})


@pytest.mark.spec("data/2.2", "data/3/Async")
def test_processes_share_a_data_set_asynchronously(loader):
    def make(mode, workers=0):
        result = []
        for p in range(2):
            opts = options()
            opts.randomSeed(1)
            opts.Distributed.configureProcessId(p, 2)
            result.append(loader(opts, dataset(11), 2, shuffle=True, mode=mode, num_workers=workers))
        return [[rows(one) for one in result] for _ in range(3)]

    assert make(DataLoaderMode.Sync) == make(DataLoaderMode.Async) == make(DataLoaderMode.AsyncRebatched, 1)


@pytest.mark.spec("data/2/shuffle", "data/3/Async")
def test_shuffled_epochs_follow_the_seed_of_the_process(loader):
    def order(mode, strategy):
        torch.manual_seed(7)
        made = loader(options(), dataset(), 2, shuffle=True, mode=mode, async_options={"sharing_strategy": strategy})
        return rows(made)

    assert order(DataLoaderMode.Sync, 2) == order(DataLoaderMode.Async, 2) == order(DataLoaderMode.Async, 3)


@pytest.mark.spec("data/5")
def test_asynchronous_loaders_feed_executors(loader):
    opts = options(3)
    model = poptorch.inferenceModel(torch.nn.Linear(1, 2), opts)
    data = TensorDataset(torch.arange(14.0).view(14, 1))
    for (batch,) in loader(opts, data, 2):
        assert torch.equal(model(batch)[2:4], model.model(batch[2:4]))


class Growing(IterableDataset):
    """Every pass yields one sample more than the one before; the first yields none."""

    def __init__(self):
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter(torch.arange(self.passes - 1))


@pytest.mark.spec("data/3/Async", "data/3/AsyncRebatched", "data/1/combined_batch_size")
@pytest.mark.parametrize("drop_last", [True, False])
def test_loaders_of_less_than_one_tensor_are_empty_in_all_modes(loader, drop_last):
    sources = [dataset(3), Stream(3)] if drop_last else [dataset(0), Stream(0)]
    for source in sources:
        for mode in DataLoaderMode:
            made = loader(options(4), source, mode=mode, drop_last=drop_last)
            assert len(made) == 0 if source is sources[0] else True
            assert list(made) == list(made) == [], mode


@pytest.mark.spec("data/3/Async", "data/3/AsyncRebatched")
def test_loaders_that_were_empty_deliver_what_a_later_pass_has(loader):
    for mode in DataLoaderMode:
        made = loader(options(2), Growing(), mode=mode)
        passes = [[batch.tolist() for batch in made] for _ in range(5)]
        assert passes == [[], [], [[0, 1]], [[0, 1]], [[0, 1], [2, 3]]], mode


# The accessor ---------------------------------------------------------------------------------------------------------
@pytest.mark.spec("data/4/process", names=["poptorch.SharingStrategy", "poptorch.AsynchronousDataAccessor"])
def test_every_strategy_brings_the_data_set_to_the_worker(accessor, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    values = torch.arange(3000.0)
    for strategy in SharingStrategy:
        data = TensorDataset(values.view(1000, 3)[::2], torch.arange(500, dtype=torch.int16))
        made = accessor(DataLoader(options(1), data, 100, num_workers=0), sharing_strategy=strategy)
        batches = [[t.clone() for t in batch] for batch in made]
        assert torch.equal(torch.cat([b[0] for b in batches]), values.view(1000, 3)[::2])
        assert torch.equal(torch.cat([b[1] for b in batches]), data.tensors[1])
        made.terminate()
        assert not [name for name in os.listdir(tmp_path) if name.startswith("abele")]


@pytest.mark.spec("data/4/process")
def test_data_sets_of_many_tensors_travel(accessor):
    # More tensors than file descriptors that a process may be given.
    made = accessor([torch.full((2,), i) for i in range(600)], sharing_strategy=SharingStrategy.ForkServer)
    assert [int(t[0]) for t in made] == list(range(600))


@pytest.mark.spec("data/4/process")
def test_a_data_set_that_cannot_travel_is_an_error():
    with pytest.raises(poptorch.Error, match="Fork"):
        AsynchronousDataAccessor(DataLoader(options(), scalars(4), collate_fn=lambda x: x))


class Pair:
    def __init__(self, a, b, name):
        self.a, self.b, self.name = a, b, name


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.a
        yield struct.b

    def reconstruct(self, original_structure, tensor_iterator):
        return Pair(next(tensor_iterator), next(tensor_iterator), original_structure.name)


@pytest.mark.spec("data/4/element_type", "environment/6", names=["poptorch.registerCustomArgParser"])
@pytest.mark.parametrize("strategy", [SharingStrategy.Fork, SharingStrategy.ForkServer])
def test_elements_keep_their_form(accessor, strategy):
    a, b = torch.arange(3), torch.ones(2, dtype=torch.half)
    tensor, listed, paired, keyed = a + 1, [a, b], (a, b), {"x": a, "y": b}
    poptorch.registerCustomArgParser(Pair, PairParser())
    try:
        for element in (tensor, listed, paired, keyed, Pair(a, b, "p")):
            if strategy == SharingStrategy.ForkServer and not isinstance(element, Pair):
                continue
            made = accessor([element] * 3, sharing_strategy=strategy)
            for got in made:
                if isinstance(element, torch.Tensor):
                    assert torch.equal(got, element)
                elif isinstance(element, dict):
                    assert type(got) is dict and list(got) == ["x", "y"] and torch.equal(got["y"], b)
                elif isinstance(element, Pair):
                    assert (got.name, got.a.tolist(), got.b.dtype) == ("p", [0, 1, 2], torch.half)
                else:
                    assert type(got) is list and torch.equal(got[0], a) and torch.equal(got[1], b)
            made.terminate()
    finally:
        poptorch.registerCustomArgParser(Pair, None)


@pytest.mark.spec("data/4/element_type")
@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16, torch.bool, torch.int8, torch.float64])
def test_scalars_and_element_types(accessor, dtype):
    made = accessor([torch.tensor(i % 2, dtype=dtype) for i in range(5)])
    got = [t.clone() for t in made]
    assert torch.equal(torch.stack(got), (torch.arange(5) % 2).to(dtype)) and got[0].shape == ()


@pytest.mark.spec("data/4/element_type", "data/4/next")
@pytest.mark.parametrize(
    "second",
    [torch.ones(4), [torch.ones(3)], {"a": torch.ones(3)}, torch.ones(3, 1)],
)
def test_elements_that_differ_are_an_error(accessor, second, capfd):
    made = accessor([torch.ones(3), second])
    iterator = iter(made)
    next(iterator)
    with pytest.raises(AssertionError, match="element"):
        next(iterator)
    with pytest.raises(AssertionError):
        iter(made)
    assert "element" in capfd.readouterr().err


@pytest.mark.spec("data/4/element_type")
def test_elements_are_converted_to_the_types_of_the_first(accessor):
    later = [
        torch.tensor([1.5, 2, 3]).half(),
        torch.arange(3),
        torch.tensor([True, False, True]),
        torch.ones(3).double(),
    ]
    got = [t.clone() for t in accessor([torch.zeros(3), *later])]
    assert [t.dtype for t in got] == [torch.float32] * 5
    assert torch.equal(torch.stack(got[1:]), torch.stack([t.float() for t in later]))


@pytest.mark.spec("data/4/element_type", "data/4/rebatched_size")
def test_rows_are_converted_to_the_types_of_the_first_when_rebatching(accessor):
    parts = [torch.arange(3, dtype=torch.int32), torch.tensor([3.0, 4.0, 5.0]), torch.arange(6, 9)]
    got = [t.clone() for t in accessor(parts, rebatched_size=4)]
    assert len(got) == 2 and torch.equal(torch.cat(got), torch.arange(8, dtype=torch.int32))


@pytest.mark.spec("data/4/element_type", "data/4/next")
def test_elements_that_are_no_tensors_are_an_error(capfd):
    for source in ([1.5], ["text"], [[torch.ones(1), 3]], [], [{"a": None}]):
        with pytest.raises(poptorch.Error, match="failed to start"):
            AsynchronousDataAccessor(source, **FORK)
    with pytest.raises(AssertionError):
        keys = AsynchronousDataAccessor([{"a": torch.ones(1)}, {"b": torch.ones(1)}], **FORK)
        try:
            list(keys)
        finally:
            keys.terminate()
    assert "float" in capfd.readouterr().err


class Broken(torch.utils.data.Dataset):
    def __init__(self, first):
        self.first = first

    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index >= self.first:
            raise ValueError(f"sample {index} is rotten")
        return torch.tensor(index)


@pytest.mark.spec("data/4/next", "data/4/interrupts")
def test_what_a_broken_data_set_says_is_told(accessor, capfd):
    with pytest.raises(poptorch.Error, match="sample 0 is rotten"):
        accessor(DataLoader(options(1), Broken(0)))
    assert "ValueError: sample 0 is rotten" in capfd.readouterr().err
    with pytest.raises(poptorch.Error, match="sample 0 is rotten"):
        DataLoader(options(1), Broken(0), mode=DataLoaderMode.Async, async_options=FORK)
    capfd.readouterr()
    made = accessor(DataLoader(options(1), Broken(5), num_workers=1))
    got = []
    with pytest.raises(AssertionError, match="sample 5 is rotten"):
        got.extend(int(t) for t in made)
    assert got == [0, 1, 2, 3, 4] and "sample 5 is rotten" in capfd.readouterr().err


class Deadly(torch.utils.data.Dataset):
    def __len__(self):
        return 9

    def __getitem__(self, index):
        if index == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(index)


@pytest.mark.spec("data/4/next")
def test_a_killed_worker_is_an_error(accessor):
    made = accessor(DataLoader(options(1), Deadly()))
    with pytest.raises(AssertionError, match="exit code -9"):
        list(made)


@pytest.mark.spec("data/4/result_lifetime")
@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_element_stays_until_the_next_is_asked_for(accessor, size):
    made = accessor(scalars(40), buffer_size=size, early_preload=True)
    seen = []
    for element in made:
        kept = element.clone()
        for _ in range(200):  # the worker has filled what it may by now, or will in one of the next elements
            assert torch.equal(kept, element)
        seen.append((element, int(kept)))
    assert [value for _, value in seen] == list(range(40))
    assert len({element.data_ptr() for element, _ in seen}) <= size
    iter(made)
    held = [next(made) for _ in range(3)][-1]
    made.terminate()
    assert int(held.add_(1)) == 3  # the memory outlives the worker


class Counted:
    """Counts in shared memory how often elements were loaded and epochs begun."""

    def __init__(self, n):
        self.n = n
        self.loaded = torch.zeros(2, dtype=torch.int64).share_memory_()
        self.event = multiprocessing.get_context("fork").Semaphore(0)

    def __len__(self):
        return self.n

    def __iter__(self):
        self.loaded[1] += 1
        for i in range(self.n):
            self.loaded[0] += 1
            self.event.release()
            yield torch.tensor([i])

    def wait_for(self, number):
        for _ in range(number):
            assert self.event.acquire(timeout=60)


@pytest.mark.spec("data/4/early_preload")
def test_the_buffer_is_filled_early_only_when_asked_for(accessor):
    source = Counted(9)
    made = accessor(source)
    assert int(source.loaded[0]) == 1
    assert int(next(iter(made))) == 0
    source = Counted(9)
    accessor(source, early_preload=True, buffer_size=4)
    source.wait_for(4)
    assert int(source.loaded[0]) >= 4


@pytest.mark.spec("data/4/load_indefinitely")
def test_the_next_epoch_begins_by_itself_only_when_asked_for(accessor):
    source = Counted(2)
    made = accessor(source, load_indefinitely=True)
    assert len(list(made)) == 2
    source.wait_for(4)  # elements of a second epoch that the test did not ask for
    assert int(source.loaded[1]) >= 2
    source = Counted(2)
    made = accessor(source, load_indefinitely=False, early_preload=True)
    for epoch in range(1, 4):
        assert [int(t) for t in made] == [0, 1] and int(source.loaded[1]) == epoch
    with pytest.raises(StopIteration):
        next(made)


@pytest.mark.spec("data/4/iter")
@pytest.mark.parametrize("indefinitely", [True, False])
def test_an_abandoned_epoch_begins_anew(accessor, indefinitely):
    made = accessor(scalars(7), load_indefinitely=indefinitely, buffer_size=2)
    assert iter(made) is made
    for taken in (1, 3, 7, 0, 2):
        iterator = iter(made)
        assert [int(next(iterator)) for _ in range(taken)] == list(range(taken))
        held = iterator
        assert held is made
    for _ in range(3):
        assert [int(t) for t in made] == list(range(7))
    assert [[int(t) for t in made] for _ in range(2)] == [list(range(7))] * 2


@pytest.mark.spec("data/4/iter")
def test_an_unused_iterator_is_not_reset(accessor):
    source = Counted(5)
    made = accessor(source, buffer_size=8, early_preload=True, load_indefinitely=False)
    iter(made)
    assert [int(t) for t in made] == list(range(5))
    assert int(source.loaded[1]) == 1


@pytest.mark.spec("data/4/iter", "data/4/result_lifetime")
def test_a_new_epoch_leaves_the_held_element_alone(accessor):
    made = accessor([torch.full((1000,), i) for i in range(5)], buffer_size=1)
    next(iter(made))
    held = next(made)
    for _ in range(5):
        iter(made)
        assert torch.equal(held, torch.full((1000,), 1))
    assert int(next(made)[0]) == 0


@pytest.mark.spec("data/4/process")
@pytest.mark.parametrize(("workers", "persistent"), [(0, None), (1, True), (2, False), (2, True)])
def test_each_epoch_has_every_element_once_and_in_order(accessor, workers, persistent):
    source = DataLoader(options(), dataset(24), 2, num_workers=workers, persistent_workers=persistent)
    made = accessor(source)
    for _ in range(3):
        assert sum(rows(made), []) == list(range(24))
    next(iter(made))
    assert sum(rows(made), []) == list(range(24))


@pytest.mark.spec("data/4/len")
def test_lengths(accessor):
    plain = DataLoader(options(), dataset(24), 2)
    assert len(accessor(plain)) == 6
    assert len(accessor(plain, rebatched_size=6)) == 6 * 4 // 6
    with pytest.raises(TypeError):
        len(accessor(DataLoader(options(), Stream(12), 2)))


@pytest.mark.spec("data/4/rebatched_size")
def test_rebatching_joins_and_splits_elements(accessor):
    pieces = [torch.arange(0, 3), torch.arange(3, 5), torch.arange(5, 12), torch.arange(12, 15)]
    for size in (2, 4, 7):
        made = accessor([{"a": p, "b": p.view(-1, 1) * 2.0} for p in pieces], rebatched_size=size)
        for _ in range(2):
            got = [(b["a"].tolist(), b["b"].flatten().tolist()) for b in made]
            assert [a for a, _ in got] == [list(range(i, i + size)) for i in range(0, 15 - size + 1, size)]
            assert all(b == [2.0 * x for x in a] for a, b in got)
    kept = accessor(DataLoader(options(), dataset(9), 2, drop_last=False), rebatched_size=6)
    assert rows(kept) == rows(kept) == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    for size in (16, 100):
        with pytest.raises(poptorch.Error, match="no element"):
            accessor(pieces, rebatched_size=size)
    for wrong in (1, 0, -2):
        with pytest.raises(AssertionError):
            accessor(scalars(2), rebatched_size=wrong)
    with pytest.raises(poptorch.Error, match="first dimension"):
        accessor(scalars(2), rebatched_size=2)


@pytest.mark.spec("data/4/DataLoader_argument")
def test_loaders_that_an_accessor_does_not_take(accessor, loader):
    with pytest.raises(poptorch.Error, match="already"):
        accessor(loader(options(), dataset(), 2))
    with pytest.raises(AssertionError, match="drop_last"):
        accessor(DataLoader(options(), dataset(), 2, drop_last=False))
    assert len(list(accessor(DataLoader(options(1), dataset(), 1, drop_last=False)))) == 23


@pytest.mark.spec("data/4/terminate", names=["DataLoader.terminate"])
def test_terminate_leaves_nothing_behind(accessor, loader):
    made = accessor(DataLoader(options(), dataset(), 2, num_workers=2))
    pid = made._worker.process.pid
    assert multiprocessing.active_children()
    made.terminate()
    made.terminate()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    for use in (iter, next):
        with pytest.raises(AssertionError, match="terminated"):
            use(made)
    background = loader(options(), dataset(), 2)
    assert len(list(background)) == 5
    background.terminate()
    with pytest.raises(AssertionError):
        iter(background)


@pytest.mark.spec("data/4/terminate")
def test_destruction_ends_the_worker():
    made = DataLoader(options(), dataset(), 2, mode=DataLoaderMode.Async, async_options=FORK)
    next(iter(made))
    assert multiprocessing.active_children()
    del made
    assert not multiprocessing.active_children()


@pytest.mark.spec("data/4/miss_sleep_time_in_ms")
@pytest.mark.parametrize("pause", [0, 0.1, 10])
def test_a_full_buffer_delays_but_loses_nothing(accessor, pause):
    made = accessor(scalars(50), buffer_size=2, miss_sleep_time_in_ms=pause)
    assert [int(t) for t in made] == list(range(50))
