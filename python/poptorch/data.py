"""DataLoader: batches of the size that one call of an executor takes.

Source: spec data.md.
"""

import torch

from . import enums, structures
from ._errors import notAvailable, userError
from ._logging import logger
from .options import Options


def _combine(batches):
    """One batch from several: tensors concatenated along their first dimension, structure kept."""
    tensors = [structures.flattenTensorStructure(batch, batches[0]) for batch in batches]
    return structures.reconstructTensorStructure(batches[0], [torch.cat(parts) for parts in zip(*tensors, strict=True)])


class DataLoader(torch.utils.data.DataLoader):
    """Yields tensors with device iterations * gradient accumulation * replicas micro-batches along dimension 0.

    Args:
        options: Options; frozen from now on.
        dataset: as for torch.
        batch_size: micro-batch size; None passes samples through unbatched.
        shuffle: None means False.
        drop_last: drop the incomplete last batch; True by default, unlike torch.
        persistent_workers: None means (num_workers > 0).
        mode: only DataLoaderMode.Sync in this version.
        batch_sampler: yields the indices of one micro-batch at a time.
        kwargs: passed to torch's DataLoader.
    """

    def __init__(
        self,
        options,
        dataset,
        batch_size=1,
        shuffle=None,
        num_workers=0,
        drop_last=True,
        persistent_workers=None,
        auto_distributed_partitioning=True,
        mode=enums.DataLoaderMode.Sync,
        async_options=None,
        rebatched_worker_size=None,
        batch_sampler=None,
        **kwargs,
    ):
        assert isinstance(options, Options), f"options must be poptorch.Options, got {type(options).__name__}"
        if mode != enums.DataLoaderMode.Sync:
            raise notAvailable(f"{mode!s}", "use DataLoaderMode.Sync, with num_workers > 0 to load in the background")
        if options.Distributed.numProcesses > 1 and auto_distributed_partitioning:
            raise notAvailable("partitioning of a data set over processes", "pass auto_distributed_partitioning=False")
        options._freeze()
        self._options = options
        self._num_to_combine = (
            options.device_iterations
            * options.Training.gradient_accumulation
            * (options.replication_factor // options.input_group_size)
        )
        self._micro_batches = None  # of a batch sampler, to be combined here
        if batch_sampler is not None:
            self._requireSampler(batch_sampler, batch_size, shuffle, drop_last)
            kwargs["batch_sampler"] = batch_sampler
            self._micro_batches = self._num_to_combine
            self._combined_batch_size = getattr(batch_sampler, "batch_size", 1) * self._num_to_combine
        else:
            self._combined_batch_size = None if batch_size is None else batch_size * self._num_to_combine
            kwargs["batch_size"] = self._combined_batch_size
            kwargs["drop_last"] = drop_last and batch_size is not None
            if not isinstance(dataset, torch.utils.data.IterableDataset) and kwargs.get("sampler") is None:
                kwargs["shuffle"] = bool(shuffle)
        self._drop_incomplete = drop_last
        self._warn(dataset, num_workers, kwargs)
        super().__init__(
            dataset,
            num_workers=num_workers,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            **kwargs,
        )

    def _requireSampler(self, batch_sampler, batch_size, shuffle, drop_last):
        if batch_size != 1 or shuffle:
            raise userError(
                "E0801",
                "data-source",
                "batch_sampler excludes batch_size and shuffle",
                found=f"batch_size={batch_size}, shuffle={shuffle}",
                remedy="leave both out",
            )
        if not drop_last:
            try:
                number = len(batch_sampler)
            except TypeError:
                logger.warning("the batch sampler has no length: the last tensor may be smaller than the others")
                return
            if number % self._num_to_combine:
                logger.warning(
                    "the batch sampler yields %d batches, which is not a multiple of %d: the last tensor is smaller "
                    "than the others",
                    number,
                    self._num_to_combine,
                )

    def _warn(self, dataset, num_workers, kwargs):
        if isinstance(dataset, torch.utils.data.IterableDataset):
            if num_workers > 1 and kwargs.get("worker_init_fn") is None:
                logger.warning(
                    "an iterable data set with %d workers and no worker_init_fn: every element is returned %d times",
                    num_workers,
                    num_workers,
                )
            return
        size = self._combined_batch_size
        if size and self._micro_batches is None and not self._drop_incomplete and len(dataset) % size:
            logger.warning(
                "the data set of %d elements is not a multiple of %d: the last tensor has %d elements along its "
                "first dimension",
                len(dataset),
                size,
                len(dataset) % size,
            )

    @property
    def combinedBatchSize(self):
        """Samples that one call of an executor takes; None if samples are not batched."""
        return self._combined_batch_size

    @property
    def options(self):
        """The options, frozen."""
        return self._options

    def terminate(self):
        """Stops the background worker of an asynchronous loader; nothing to do here."""

    def __iter__(self):
        batches = super().__iter__()
        return batches if self._micro_batches is None else self._combined(batches)

    def _combined(self, batches):
        group = []
        for batch in batches:
            group.append(batch)
            if len(group) == self._micro_batches:
                yield _combine(group)
                group = []
        if group and not self._drop_incomplete:
            yield _combine(group)


class AsynchronousDataAccessor:
    """Not available in this version; the constructor says so."""

    def __init__(self, *args, **kwargs):
        raise notAvailable(
            "AsynchronousDataAccessor", "iterate the DataLoader, with num_workers > 0 to load in the background"
        )
