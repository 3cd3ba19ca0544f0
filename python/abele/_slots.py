"""A ring of slots in memory that two processes share: each slot holds the tensors of one element.

The memory has no name in any file system, so it leaves nothing behind when a process ends.
"""

import math
import mmap
import os

import torch

_ALIGNMENT = 64  # alignment of every tensor, the same as torch's


def new_memory(num_bytes):
    """A file descriptor of new memory of this size, filled with zeros. The caller closes it."""
    fd = os.memfd_create("abele")
    os.ftruncate(fd, num_bytes)
    return fd


def aligned(num_bytes):
    """num_bytes rounded up to the next place where a tensor may begin."""
    return (num_bytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT


class Layout:
    """Shape and dtype of each tensor of one element, and their places in a slot."""

    def __init__(self, types):
        self.types = [(tuple(shape), dtype) for shape, dtype in types]
        self.offsets = []
        self.slot_bytes = 0
        for shape, dtype in self.types:
            self.offsets.append(self.slot_bytes)
            self.slot_bytes += aligned(math.prod(shape) * dtype.itemsize)


class Slots:
    """Tensors of every slot.

    Args:
        fd: memory of at least num_bytes(layout, count); may be closed afterwards.
    Owns: a mapping that lives as long as one of its tensors.
    """

    @staticmethod
    def num_bytes(layout, count):
        """Bytes of memory for this number of slots."""
        return max(1, layout.slot_bytes * count)

    def __init__(self, layout, count, fd):
        self._layout = layout
        self._memory = mmap.mmap(fd, self.num_bytes(layout, count))
        self.tensors = [self._slot(index * layout.slot_bytes) for index in range(count)]

    def _slot(self, begin):
        slot = []
        for (shape, dtype), offset in zip(self._layout.types, self._layout.offsets, strict=True):
            count = math.prod(shape)
            if count == 0:
                slot.append(torch.empty(shape, dtype=dtype))
            else:
                flat = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=begin + offset)
                slot.append(flat.view(shape))
        return slot
