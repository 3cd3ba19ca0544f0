"""Sends an object with many tensors to another process: its pickle and its storages in one file or piece of memory.

It uses one file descriptor for everything, because a process may have few of them. Tensors that share a storage share
it in the other process too. Storages that processes share already stay shared.
"""

import io
import mmap
import os
import pickle
import tempfile
from multiprocessing import reduction

import torch

from ._slots import aligned, new_memory


class _Pickler(reduction.ForkingPickler):
    """Collects storages apart from the pickle."""

    def __init__(self, file):
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.storages = []
        self._index = {}

    def persistent_id(self, value):
        if not isinstance(value, torch.UntypedStorage) or value.device.type != "cpu" or value.is_shared():
            return None
        if value.nbytes() == 0:
            return None
        key = (value.data_ptr(), value.nbytes())
        if key not in self._index:
            self._index[key] = len(self.storages)
            self.storages.append(value)
        return self._index[key]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file, memory, places):
        super().__init__(file)
        self._memory = memory
        self._places = places
        self._storages = {}

    def persistent_load(self, index):
        if index not in self._storages:
            offset, count = self._places[index]
            view = torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=offset)
            storage = view.untyped_storage()
            if storage.data_ptr() != view.data_ptr() or storage.nbytes() != count:
                storage = view.clone().untyped_storage()
            self._storages[index] = storage
        return self._storages[index]


class Shipment:
    """An object for a process that is being started. The start of that process pickles it once.

    Args:
        through_file: use a temporary file instead of memory.
    """

    def __init__(self, value, through_file):
        self._value = value
        self._through_file = through_file
        self._fd = None
        self.path = None  # path of the temporary file, which its reader removes

    def __reduce__(self):
        text = io.BytesIO()
        pickler = _Pickler(text)
        pickler.dump(self._value)
        places, size = [], aligned(text.tell())
        for storage in pickler.storages:
            places.append((size, storage.nbytes()))
            size += aligned(storage.nbytes())
        self._fd = self._new_file(size)
        with mmap.mmap(self._fd, size) as memory:
            memory[: text.tell()] = text.getbuffer()
            for (offset, count), storage in zip(places, pickler.storages, strict=True):
                torch.frombuffer(memory, dtype=torch.uint8, count=count, offset=offset).copy_(
                    torch.empty(0, dtype=torch.uint8).set_(storage)
                )
        source = self.path if self._through_file else reduction.DupFd(self._fd)
        return Arrival, (source, text.tell(), size, places)

    def _new_file(self, size):
        if not self._through_file:
            return new_memory(size)
        fd, self.path = tempfile.mkstemp(prefix="abele-data-set-")
        os.ftruncate(fd, size)
        return fd

    def close(self):
        """Called after the process was started, when it has its own copy of the descriptor."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def unpack(self):
        """The object. A forked process has it already."""
        return self._value


class Arrival:
    """A Shipment in the process that receives it."""

    def __init__(self, source, text_bytes, size, places):
        self._source = source
        self._text_bytes = text_bytes
        self._size = size
        self._places = places

    def unpack(self):
        """The object. Its tensors belong to this process: other processes do not see writes to them."""
        if isinstance(self._source, str):
            fd = os.open(self._source, os.O_RDONLY)
            os.unlink(self._source)
        else:
            fd = self._source.detach()
        memory = mmap.mmap(fd, self._size, access=mmap.ACCESS_COPY)
        os.close(fd)
        return _Unpickler(io.BytesIO(memory[: self._text_bytes]), memory, self._places).load()
