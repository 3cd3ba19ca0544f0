"""One process's share of a data set. Source: spec data.md, section 2.2."""

import torch

from ._native import core


def _shared(values):
    return torch.tensor(values, dtype=torch.int64).share_memory_()


class Partition(torch.utils.data.Dataset):
    """A contiguous block of the indices of a data set, or of a permutation of them that all processes share.

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
        self._start = _shared([self._offset])
        self._generator = self._permutation = None
        if seed is not None:
            self._generator = torch.Generator().manual_seed(seed)
            self._permutation = _shared(range(count))

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
