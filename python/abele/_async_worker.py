"""The process of an AsynchronousDataAccessor: iterates a data set and copies every element into shared slots.

Messages, one tuple each. To the accessor: ("memory", layout, slots, element with empty tensors) followed by the file
descriptor of the slots, ("epoch", generation, random states at its start), ("data", generation, slot, rows),
("end", generation, waits, random states at the end), ("error", text). From the accessor: ("go",): load more than the
first element; ("free", slot); ("restart", generation, elements, random states): drop what was loaded and begin an epoch
with these states (None: the present ones), after this many elements; ("stop",). Random states are bytes. A generation
is the time between two restarts; it identifies messages that are late.
"""

import collections
import dataclasses
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from multiprocessing import reduction
from pathlib import Path

import torch

from . import structures
from ._random_states import random_states, set_random_states
from ._slots import Layout, Slots, new_memory

ALIVE_CHECK_SECONDS = 1.0


class _Stop(Exception):
    """The accessor needs no more elements."""


class _Restart(Exception):
    """The accessor needs a new epoch."""


class BadElement(Exception):
    """An element of the data set that cannot be delivered."""


def plain(value):
    """The element in its form for delivery: lists for tuples, and dicts for other mappings.

    Raises:
        BadElement: it holds something other than tensors.
    """
    if isinstance(value, torch.Tensor) or structures.parser_for(value) is not None:
        return value
    if isinstance(value, collections.abc.Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    raise BadElement(
        f"an element of the data set holds a {type(value).__name__}; expected tensors, or lists, tuples or dicts of "
        "tensors, or types with a registered parser (poptorch.registerCustomArgParser)"
    )


def _import_numpy(states):
    """Imports numpy if `states` has its states, because the data set may import it later."""
    if "numpy" in states:
        import numpy  # noqa: F401


@dataclasses.dataclass
class Settings:
    """The accessor's settings for loading its data set. They travel to the worker."""

    buffer_size: int
    busy_wait: bool
    load_indefinitely: bool
    early_preload: bool
    rebatched_size: int | None  # None: deliver elements as they come
    keep_rest: bool  # deliver an incomplete last batch when rebatching
    short_last: bool  # an element may have fewer rows than the first one
    start_method: str  # for processes that the data set starts


class _Loader:
    """Iterates the data set until it is told to stop."""

    def __init__(self, dataset, connection, settings):
        self._dataset = dataset
        self._connection = connection
        self._settings = settings
        self._parent = os.getppid()
        self._free = collections.deque()
        self._slots = None
        self._element = None  # the first element with empty tensors, which defines the form of all
        self._layout = None
        self._generation = 0
        self._may_go_on = settings.early_preload
        self._delivered = 0
        self._skipped = 0  # batches of this epoch before the checkpoint, which are not delivered
        self._partial = None  # slot of a batch that is not full yet
        self._filled = 0  # number of its rows
        self.children = set()  # process numbers of the data set's own workers

    def run(self):
        while True:
            try:
                before = self._delivered
                self._epoch()
                self._skipped = 0
                # Waits after an epoch that delivers nothing, because it would repeat for ever.
                waits = not self._settings.load_indefinitely or self._delivered == before
                self._connection.send(("end", self._generation, waits, self._states()))
                while waits:
                    self._listen(block=True)
            except _Restart:
                pass

    # The states at the start of a DataLoader's pass; for other data sets those of this process. They are bytes: for a
    # tensor in a message the other side would request memory from this process, which may have ended by then.
    def _states(self):
        of_loader = getattr(self._dataset, "_random_state", None)
        return pickle.dumps(random_states() if of_loader is None else of_loader())

    def _set_states(self, packed):
        states = pickle.loads(packed)
        set_states = getattr(self._dataset, "_set_random_state", set_random_states)
        _import_numpy(states)
        set_states(states)

    # Messages --------------------------------------------------------------------------------------------------------
    def _listen(self, block):
        """Handles messages. With `block` waits for one."""
        timeout = 0 if not block or self._settings.busy_wait else ALIVE_CHECK_SECONDS
        if not self._connection.poll(timeout) and os.getppid() != self._parent:
            raise _Stop
        restart = False
        while self._connection.poll(0):
            kind, *values = self._connection.recv()
            if kind == "stop":
                raise _Stop
            if kind == "free":
                self._free.append(values[0])
            elif kind == "go":
                self._may_go_on = True
            elif kind == "restart":
                self._generation, self._skipped, states = values
                if states is not None:
                    self._set_states(states)
                restart = True
        if restart:
            raise _Restart

    def _free_slot(self):
        self._listen(block=False)
        while not self._free:
            self._listen(block=True)
        return self._free.popleft()

    def _deliver(self, slot, rows):
        if self._skipped:
            self._skipped -= 1
            self._free.append(slot)
            return
        self._connection.send(("data", self._generation, slot, rows))
        self._delivered += 1

    # Elements --------------------------------------------------------------------------------------------------------
    def _epoch(self):
        deliver = self._deliver_element if self._settings.rebatched_size is None else self._deliver_rows
        try:
            self._connection.send(("epoch", self._generation, self._states()))
            for number, element in enumerate(self._dataset):
                if number == 0:
                    self.children.update(child.pid for child in multiprocessing.active_children())
                self._listen(block=False)
                deliver(self._tensors_of(plain(element)))
                while self._delivered and not self._may_go_on:
                    self._listen(block=True)
            if self._partial is not None and self._settings.keep_rest:
                self._deliver(self._partial, [self._filled] * len(self._layout.types))
                self._partial = None
        finally:
            if self._partial is not None:
                self._free.appendleft(self._partial)
                self._partial = None

    def _tensors_of(self, element):
        is_first = self._element is None
        is_alike = is_first or self._is_like_the_first(element)
        like = self._element if is_alike else None
        tensors = [tensor.detach() for tensor in structures.flattenTensorStructure(element, like)]
        if is_first:
            self._begin(element, tensors)
        elif not is_alike or len(tensors) != len(self._layout.types):
            raise BadElement("an element of the data set has other fields than the first one")
        return tensors

    def _is_like_the_first(self, element):
        if isinstance(element, dict):
            return isinstance(self._element, dict) and element.keys() == self._element.keys()
        return type(element) is type(self._element)

    def _begin(self, element, tensors):
        """Makes the slots after the first element has shown the form."""
        size = self._settings.rebatched_size
        if size is not None:
            self._require_rows(tensors)
        self._layout = Layout(
            [((size, *tensor.shape[1:]) if size is not None else tensor.shape, tensor.dtype) for tensor in tensors]
        )
        self._element = structures.skeleton(element)
        count = self._settings.buffer_size
        fd = new_memory(Slots.num_bytes(self._layout, count))
        try:
            self._slots = Slots(self._layout, count, fd)
            self._connection.send(("memory", self._layout, count, self._element))
            reduction.send_handle(self._connection, fd, None)
        finally:
            os.close(fd)
        self._free.extend(range(count))

    @staticmethod
    def _require_rows(tensors):
        if any(tensor.dim() == 0 or tensor.shape[0] != tensors[0].shape[0] for tensor in tensors):
            raise BadElement(
                "rebatching needs tensors of equal first dimension, got shapes "
                + ", ".join(str(list(tensor.shape)) for tensor in tensors)
            )

    def _is_accepted(self, tensor, index):
        shape, _ = self._layout.types[index]
        if tensor.dim() != len(shape):
            return False
        if self._settings.rebatched_size is not None:
            return tensor.shape[1:] == shape[1:]
        if self._settings.short_last and shape:
            return tensor.shape[1:] == shape[1:] and tensor.shape[0] <= shape[0]
        return tensor.shape == shape

    def _require_accepted(self, tensors):
        for index, tensor in enumerate(tensors):
            if not self._is_accepted(tensor, index):
                shape, _ = self._layout.types[index]
                raise BadElement(
                    f"tensor {index} of an element has shape {list(tensor.shape)}, that of the first element has shape "
                    f"{list(shape)}; all elements must have the same shapes"
                )

    # The copy into a slot converts to the first element's types.
    def _deliver_element(self, tensors):
        self._require_accepted(tensors)
        slot = self._free_slot()
        rows = None
        for target, source in zip(self._slots.tensors[slot], tensors, strict=True):
            if source.shape == target.shape:
                target.copy_(source)
            else:
                target[: source.shape[0]].copy_(source)
                rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        self._deliver(slot, rows)

    def _deliver_rows(self, tensors):
        """Fills batches of rebatched_size rows, and delivers the full ones."""
        self._require_rows(tensors)
        self._require_accepted(tensors)
        size, begin, rows = self._settings.rebatched_size, 0, tensors[0].shape[0]
        while begin < rows:
            if self._partial is None:
                self._partial, self._filled = self._free_slot(), 0
            taken = min(size - self._filled, rows - begin)
            for target, source in zip(self._slots.tensors[self._partial], tensors, strict=True):
                target[self._filled : self._filled + taken].copy_(source[begin : begin + taken])
            self._filled, begin = self._filled + taken, begin + taken
            if self._filled == size:
                self._deliver(self._partial, None)
                self._partial = None


def _parsers_that_travel():
    """The registered parsers that can be pickled, because a new process has none."""
    found = {}
    for cls, parser in structures.PARSERS.items():
        try:
            pickle.dumps((cls, parser))
        except Exception:  # any error of user code: the worker names the type without a parser later
            continue
        found[cls] = parser
    return found


def cargo(dataset):
    """The data that a new process needs to load the data set as this process would."""
    return dataset, _parsers_that_travel(), random_states()


def _end_children(seen):
    """Ends the processes that the data set started, and removes the shared memory of those and of earlier ones. A
    process of torch's DataLoader leaves its memory behind if it ends while it passes on a batch."""
    children = multiprocessing.active_children()
    for child in children:
        child.terminate()
    for child in children:
        child.join(ALIVE_CHECK_SECONDS)
    for process in seen.union(child.pid for child in children):
        if not Path(f"/proc/{process}").exists():
            for left in Path("/dev/shm").glob(f"torch_{process}_*"):
                left.unlink(missing_ok=True)


def _raise_stop(signum, frame):
    raise _Stop


def _interrupt(signum, frame):
    """Handles Ctrl-C. Ends the processes of a DataLoader first, because one that passes on a batch would report the
    broken connection."""
    # torch's handler raises if such a process ends by a signal. SIG_DFL instead would let Python report a signal that
    # arrives at this moment.
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for child in multiprocessing.active_children():
        child.kill()
    raise KeyboardInterrupt


def main(shipment, connection, settings, others):
    """The worker's process, from start to end. others: connections of the parent that a forked process must close."""
    loader = None
    try:
        for other in others:
            other.close()
        signal.signal(signal.SIGTERM, _raise_stop)  # the accessor sends it if an element does not arrive
        signal.signal(signal.SIGINT, _interrupt)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork
        multiprocessing.set_start_method(settings.start_method, force=True)
        dataset, parsers, states = shipment.unpack()
        for cls, parser in parsers.items():
            structures.registerCustomArgParser(cls, parser)
        _import_numpy(states)
        set_random_states(states)
        loader = _Loader(dataset, connection, settings)
        loader.run()
    except (_Stop, KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # Ctrl-C reaches the whole process group, and the program itself reports it
    except BaseException as error:
        _report(connection, error)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if loader is not None:
            _end_children(loader.children)
        connection.close()


def _report(connection, error):
    text = str(error) if isinstance(error, BadElement) else traceback.format_exc()
    try:
        connection.send(("error", text))
    except OSError:
        print(text, file=sys.stderr)
