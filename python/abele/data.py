"""DataLoader: batches of the size that one call of an executor takes.

Source: spec data.md, sections 1 to 3.
"""

import numbers
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from . import profiling, structures
from ._async_accessor import AsynchronousDataAccessor
from ._errors import refused, require_type, user_error
from ._item_access import replaced
from ._logging import logger
from ._native import core
from ._random_states import random_states, set_random_states
from .enums import DataLoaderMode
from .options import Options

_dataset_channel = profiling.Channel("dataset")
_loader_channel = profiling.Channel("poptorch.DataLoader")


def _combine(batches):
    """One batch from several: tensors concatenated along their first dimension, structure kept."""
    tensors = [structures.flattenTensorStructure(batch, batches[0]) for batch in batches]
    return structures.reconstructTensorStructure(batches[0], [torch.cat(parts) for parts in zip(*tensors, strict=True)])


def _length_of(source):
    """len(source), or None if it has none."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


class DataLoader(torch.utils.data.DataLoader):
    """Yields tensors with device iterations * gradient accumulation * replicas micro-batches along dimension 0.

    Args:
        options: Options; frozen from now on.
        dataset: as for torch.
        batch_size: micro-batch size; None passes samples through unbatched.
        shuffle: None means False.
        num_workers: as for torch.
        drop_last: drop the incomplete last batch; True by default, unlike torch.
        persistent_workers: None means False, as for torch; poptorch.DataLoader takes it for (num_workers > 0).
        auto_distributed_partitioning: with several processes, each loads its own share of the data set.
        mode: where batches are made: here (Sync), or ahead, in a process of their own (Async), there from parts that
            need not be full (AsyncRebatched), so that only one batch of the whole data set is incomplete.
        async_options: arguments of the AsynchronousDataAccessor of an asynchronous mode.
        rebatched_worker_size: samples that torch's workers load at a time when rebatching; default: a whole batch.
        batch_sampler: yields the indices of one micro-batch at a time.
        kwargs: passed to torch's DataLoader.
    """

    _workers_persist = False  # unless persistent_workers says otherwise
    _accessor = None
    _resumed = None  # the beginning of the next pass, from a checkpoint
    _is_own_source = False  # true while the loader is handed to the accessor that it makes

    def __init__(
        self,
        options: Options,
        dataset: torch.utils.data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        num_workers: int = 0,
        drop_last: bool = True,
        persistent_workers: bool | None = None,
        auto_distributed_partitioning: bool = True,
        mode: DataLoaderMode = DataLoaderMode.Sync,
        async_options: dict[str, Any] | None = None,
        rebatched_worker_size: int | None = None,
        batch_sampler: Any = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(options, Options):
            raise refused(AssertionError, f"options must be poptorch.Options, got {type(options).__name__}")
        for name, value, kinds, expected in (
            ("num_workers", num_workers, numbers.Integral, "an int"),
            ("async_options", async_options, (dict, type(None)), "a dict of arguments, or None"),
            ("rebatched_worker_size", rebatched_worker_size, (numbers.Integral, type(None)), "an int, or None"),
        ):
            require_type("DataLoader", name, value, kinds, expected)
        options._freeze()
        self._options = options
        # The position of the last pass: batches that were taken (None: it has ended), and the random states at its
        # start.
        self._progress = types.SimpleNamespace(batches=None, random=None)
        replicas, self._shares, self._own_share = options._native.inputShares()
        self._num_to_combine = (
            options.device_iterations * options.Training.gradient_accumulation * (replicas // options.input_group_size)
        )
        self._drop_incomplete = drop_last
        self._combined_batch_size = None if batch_size is None else batch_size * self._num_to_combine
        self._micro_batches = None  # batches of a batch sampler, which are combined here
        self._partition = None
        is_iterable = isinstance(dataset, torch.utils.data.IterableDataset)
        partitioned = auto_distributed_partitioning and self._shares > 1
        if batch_sampler is not None:
            self._require_sampler(batch_sampler, batch_size, shuffle, partitioned)
            self._micro_batches = self._num_to_combine
            self._combined_batch_size = getattr(batch_sampler, "batch_size", 1) * self._num_to_combine
        mode = self._mode_for(DataLoaderMode(mode))
        self._rebatches = mode == DataLoaderMode.AsyncRebatched
        if batch_sampler is not None:
            self._warn_about_groups(batch_sampler)
            kwargs["batch_sampler"] = batch_sampler
        else:
            if is_iterable:
                self._check_iterable(partitioned, num_workers, kwargs)
            else:
                dataset = _dataset_channel.instrument(dataset, "__getitem__")
                self._warn_about_last(dataset)
            if partitioned:
                dataset = self._partition_of(dataset, shuffle)
                shuffle = False
            kwargs["batch_size"] = self._combined_batch_size
            kwargs["drop_last"] = drop_last and not self._rebatches and batch_size is not None
            if not is_iterable or shuffle:
                kwargs["shuffle"] = bool(shuffle)
        if self._rebatches and self._combined_batch_size is not None:
            size = self._rebatched_worker_size(rebatched_worker_size)
            if batch_sampler is None:
                kwargs["batch_size"] = size
        super().__init__(
            dataset,
            num_workers=num_workers,
            persistent_workers=self._workers_persist and num_workers > 0
            if persistent_workers is None
            else persistent_workers,
            **kwargs,
        )
        self._warn_if_empty()
        _loader_channel.instrument(self, "__iter__", "terminate")
        if mode != DataLoaderMode.Sync:
            self._make_accessor(dict(async_options or {}))

    # Set-up ----------------------------------------------------------------------------------------------------------
    def _mode_for(self, mode):
        """The mode to use: an incomplete last batch must be assembled by the accessor."""
        if mode == DataLoaderMode.Sync or self._combined_batch_size is None:
            return min(mode, DataLoaderMode.Async)
        if mode == DataLoaderMode.Async and not self._drop_incomplete and self._combined_batch_size > 1:
            return DataLoaderMode.AsyncRebatched
        return mode

    def _rebatched_worker_size(self, size):
        size = self._combined_batch_size if size is None else size
        if not (1 <= size <= self._combined_batch_size):
            raise refused(
                AssertionError,
                f"rebatched_worker_size is {size}, expected at most the combined batch size "
                f"{self._combined_batch_size}",
            )
        return size

    def _make_accessor(self, async_options):
        if "rebatched_size" in async_options:
            raise refused(AssertionError, "async_options holds rebatched_size: use mode=DataLoaderMode.AsyncRebatched")
        # Groups of a batch sampler are combined here in every mode; there is nothing left to rebatch.
        rebatch = self._rebatches and self._micro_batches is None and (self._combined_batch_size or 1) > 1
        size = self._combined_batch_size if rebatch else None
        with replaced("_is_own_source", True, self):
            accessor = AsynchronousDataAccessor(self, rebatched_size=size, **async_options)
        accessor._dataset = weakref.proxy(self)  # so that the worker ends with the last reference to the loader
        self._accessor = accessor

    def _rules_for_accessor(self, rebatched_size):
        """Called by an accessor that will iterate this loader.

        Returns: (deliver an incomplete last batch, an element may have fewer rows than the first, there may be none).
        """
        if self._accessor is not None:
            raise user_error(
                "E0801",
                "the DataLoader has an AsynchronousDataAccessor already",
                remedy="iterate the DataLoader, or make it with mode=DataLoaderMode.Sync",
            )
        keeps = not self._drop_incomplete
        if rebatched_size is None and not self._is_own_source and keeps and (self.combinedBatchSize or 1) != 1:
            raise refused(
                AssertionError,
                "a DataLoader with drop_last=False yields a last tensor of another size: set drop_last=True or "
                f"rebatched_size={self.combinedBatchSize}",
            )
        return keeps, self._micro_batches is not None and self._is_own_source, self._is_own_source

    def _partition_of(self, dataset, shuffle):
        if self._combined_batch_size is None:
            raise refused(AssertionError, "batch_size=None cannot be split over several processes")
        if shuffle and not self._options.exists("random_seed"):
            raise refused(
                AssertionError,
                "shuffling a data set that several processes share needs the same options.randomSeed(...) in all",
            )
        self._partition = _Partition(
            dataset,
            self._shares,
            self._own_share,
            self._combined_batch_size,
            self._drop_incomplete,
            self._options.random_seed if shuffle else None,
        )
        return self._partition

    @staticmethod
    def _require_sampler(batch_sampler, batch_size, shuffle, partitioned):
        if batch_size != 1 or shuffle:
            raise user_error(
                "E0801",
                "batch_sampler excludes batch_size and shuffle",
                found=f"batch_size={batch_size}, shuffle={shuffle}",
                remedy="leave both out",
            )
        if partitioned:
            raise user_error(
                "E0801",
                "a batch sampler cannot be split over several processes",
                remedy="pass auto_distributed_partitioning=False and a sampler that yields this process's indices",
            )

    def _warn_about_groups(self, batch_sampler):
        if self._drop_incomplete:
            return
        number = _length_of(batch_sampler)
        if number is None:
            logger.warning("the batch sampler has no length: the last tensor may be smaller than the others")
        elif number % self._num_to_combine:
            logger.warning(
                "the batch sampler yields %d batches, which is not a multiple of %d: the last tensor is smaller than "
                "the others",
                number,
                self._num_to_combine,
            )

    @staticmethod
    def _check_iterable(partitioned, num_workers, kwargs):
        if partitioned:
            raise refused(
                AssertionError,
                "an iterable data set cannot be split over several processes: pass auto_distributed_partitioning=False "
                "and split it in the data set",
            )
        if num_workers > 1 and kwargs.get("worker_init_fn") is None:
            logger.warning(
                "an iterable data set with %d workers and no worker_init_fn: every element is returned %d times",
                num_workers,
                num_workers,
            )

    def _warn_about_last(self, dataset):
        size, count = self._combined_batch_size, _length_of(dataset)
        processes = self._shares
        if size and count is not None and not self._drop_incomplete and count % (size * processes):
            logger.warning(
                "the data set of %d elements is not a multiple of %d: the last tensor has %d elements along its first "
                "dimension",
                count,
                size * processes,
                count % (size * processes) if processes == 1 else -(-count // processes) % size or size,
            )

    def _warn_if_empty(self):
        if _length_of(self) == 0:
            logger.warning(
                "the DataLoader has length 0 and yields nothing: %s samples do not fill one tensor of %s; use a "
                "smaller batch_size, fewer deviceIterations, gradientAccumulation or replicas, or drop_last=False",
                _length_of(self.dataset),
                self._combined_batch_size,
            )

    # Use -------------------------------------------------------------------------------------------------------------
    @property
    def combinedBatchSize(self) -> int | None:
        """Samples that one call of an executor takes; None if samples are not batched."""
        return self._combined_batch_size

    @property
    def options(self) -> Options:
        """The options, frozen."""
        return self._options

    def terminate(self) -> None:
        """Stops the worker of an asynchronous loader, which cannot be iterated any more; otherwise does nothing."""
        if self._accessor is not None:
            self._accessor.terminate()

    def __del__(self):
        self.terminate()

    def __len__(self) -> int:
        if not self._rebatches or self._combined_batch_size is None:
            return super().__len__()
        if self._micro_batches is not None:
            count, size = len(self.batch_sampler), self._micro_batches
        elif isinstance(self.dataset, torch.utils.data.IterableDataset):
            count, size = len(self.dataset), self._combined_batch_size
        else:
            count, size = len(self.sampler), self._combined_batch_size
        return count // size + (0 if self._drop_incomplete or count % size == 0 else 1)

    def __iter__(self) -> Iterator[Any]:
        return _loader_channel.spans("next", self._batches())

    def _batches(self):
        if self._accessor is not None:
            return _Held(self, iter(self._accessor))
        return _Pass(self)

    def _begin_pass(self):
        if self._partition is not None:
            self._partition.next_pass()
        batches = super().__iter__()
        return batches if self._micro_batches is None else self._combined(batches)

    # Positions, for checkpoints --------------------------------------------------------------------------------------
    def _position(self):
        """(number of batches taken of the current pass, or None between two passes; the random states at the start of
        the pass)."""
        if self._accessor is not None:
            return self._accessor._position()
        if self._progress.batches is None:
            return None, self._random_state()
        return self._progress.batches, self._progress.random

    def _seek(self, batches, state):
        """Makes the next pass continue at this _position(), after the batches that were taken."""
        if self._accessor is not None:
            self._accessor._seek(batches, state)
            return
        if batches is None:
            self._set_random_state({name: state[name] for name in state.keys() - random_states().keys()})
        self._resumed = None if batches is None else (batches, state)

    def _is_in_order(self):
        """Whether a number of batches identifies a position: all samples in order, in this process."""
        is_in_order = isinstance(self.sampler, torch.utils.data.SequentialSampler) and self._micro_batches is None
        return is_in_order and self._shares == 1 and _length_of(self) is not None

    def _seek_in_order(self, batches):
        """Makes the next pass begin after this number of batches. Requires: _is_in_order()."""
        if self._accessor is not None:
            self._accessor._seek(batches % max(1, len(self)), self._accessor._position()[1])
            return
        self._seek(None if batches >= len(self) else batches, self._random_state())

    def _random_state(self):
        own = {} if self.generator is None else {"own": self.generator.get_state()}
        return {**random_states(), **own, **({} if self._partition is None else self._partition.state())}

    def _set_random_state(self, state):
        set_random_states(state)
        if self.generator is not None and "own" in state:
            self.generator.set_state(state["own"])
        if self._partition is not None:
            self._partition.set_state(state)

    def _combined(self, batches):
        group = []
        for batch in batches:
            group.append(batch)
            if len(group) == self._micro_batches:
                yield _combine(group)
                group = []
        if group and not self._drop_incomplete:
            yield _combine(group)


class _Partition(torch.utils.data.Dataset):
    """A contiguous block of the indices of a data set, or of a permutation of them that all processes share.
    Source: spec data.md, section 2.2.

    Args:
        dataset: map style, the same in all processes.
        num_processes, process_id: the number of processes that share it, and the index of this one.
        step: samples that one process takes at a time.
        drop_last: all processes get the same number of full steps; otherwise the samples are spread evenly.
        seed: permute the indices with this seed, differently in each pass; None: keep their order.
    """

    def __init__(self, dataset, num_processes, process_id, step, drop_last, seed):
        self._dataset = dataset
        count = len(dataset)
        block = core().sampleBlockOf(count, num_processes, process_id, step, drop_last)
        self._offset, self._length, self._leftovers = block
        # Shared memory, because the processes that load samples must see the changes of next_pass().
        self._start = torch.tensor([self._offset]).share_memory_()
        self._generator = self._permutation = None
        if seed is not None:
            self._generator = torch.Generator().manual_seed(seed)
            self._permutation = torch.arange(count).share_memory_()

    def next_pass(self):
        """Begins a pass: permutes and moves the block, so that samples left out of one pass are in the next."""
        if self._generator is None:
            return
        self._permutation.copy_(torch.randperm(len(self._permutation), generator=self._generator))
        at_offset = int(self._start) == self._offset
        self._start.fill_(self._offset + (self._leftovers if at_offset else 0))

    def state(self):
        """The state at the start of the next pass, for a checkpoint."""
        if self._generator is None:
            return {}
        return {"partition": self._generator.get_state(), "partition_start": self._start.clone()}

    def set_state(self, state):
        if self._generator is not None and "partition" in state:
            self._generator.set_state(state["partition"])
            self._start.copy_(state["partition_start"])

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        if not 0 <= index < self._length:
            raise IndexError(f"index {index} is outside of 0..{self._length - 1}")
        index += int(self._start)
        return self._dataset[index if self._permutation is None else int(self._permutation[index])]


class _Held:
    """An iterator that keeps a loader alive: `for batch in DataLoader(...)` has no other reference to it."""

    def __init__(self, loader, batches):
        self._loader, self._batches = loader, batches

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._batches)

    def __len__(self):
        return len(self._batches)


class _Pass(_Held):
    """One pass over a loader, which counts its batches."""

    def __init__(self, loader):
        resumed, loader._resumed = loader._resumed, None
        now = random_states()
        if resumed is not None:
            loader._set_random_state(resumed[1])
        self._progress = loader._progress = types.SimpleNamespace(batches=None, random=loader._random_state())
        super().__init__(loader, loader._begin_pass())
        self._progress.batches = 0
        if resumed is not None:
            # The earlier batches are made again, so that a data set that draws random numbers continues as without the
            # interruption.
            for _ in range(resumed[0]):
                next(self, None)
            set_random_states(now)

    def __next__(self):
        try:
            batch = super().__next__()
        except StopIteration:
            self._progress.batches = None
            raise
        self._progress.batches += 1
        return batch

    def __del__(self):
        self._progress.batches = None
