"""AsynchronousDataAccessor: another process loads the elements of a data set ahead.

Source: spec data.md, section 4. The other side of its messages is _async_worker.py.
"""

import contextlib
import multiprocessing
import numbers
import os
import pickle
import signal
import sys
import threading
import weakref
from multiprocessing import reduction, util
from typing import Any, Self

from . import structures
from ._async_worker import ALIVE_CHECK_SECONDS, Settings, cargo, main
from ._errors import refused, require_type, user_error
from ._shipping import Shipment
from ._slots import Slots
from .enums import SharingStrategy

_JOIN_SECONDS = 10
_METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
_REMEDY = (
    "define the data set, its collate_fn and worker_init_fn at the top level of a module and guard the program with "
    "if __name__ == '__main__', or use SharingStrategy.Fork"
)
_connections = weakref.WeakSet()  # connections of all accessors of this process


@contextlib.contextmanager
def _without_interrupts():
    """Delays Ctrl-C. A process started inside starts with Ctrl-C blocked, so that it can prepare for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _start_fork_server():
    from multiprocessing import forkserver

    if forkserver._forkserver._preload_modules == ["__main__"]:
        # The server imports what its children need, so that each child need not import it again.
        multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", "abele._async_worker"])
    destination = os.environ.pop("POPTORCH_LOG_DEST", None)  # so that the server does not empty this process's log
    try:
        forkserver.ensure_running()
    finally:
        if destination is not None:
            os.environ["POPTORCH_LOG_DEST"] = destination


def _stop_process(process, connection):
    """Asks the process to stop; ends it if it does not."""
    with contextlib.suppress(OSError):
        connection.send(("stop",))
    connection.close()
    process.join(_JOIN_SECONDS)
    if process.is_alive():
        process.terminate()  # instead of SIGINT, which the process may ignore
        process.join(1)
    if process.is_alive():
        process.kill()
        process.join()


class _Worker:
    """The accessor's side of its process. Owns: the process and the connection to it."""

    def __init__(self, dataset, sharing_strategy, settings):
        method = _METHODS[sharing_strategy]
        context = multiprocessing.get_context(method)
        others = list(_connections) if method == "fork" else []
        self.connection, theirs = context.Pipe()
        others += [self.connection] if method == "fork" else []
        shipment = Shipment(cargo(dataset), through_file=sharing_strategy == SharingStrategy.FileSystem)
        # Not a daemon, because it may have children of its own: the loaders of a DataLoader.
        self.process = context.Process(target=main, args=(shipment, theirs, settings, others), daemon=False)
        if method == "forkserver":
            _start_fork_server()
        try:
            with _without_interrupts():
                self.process.start()
        except Exception as error:
            self.connection.close()
            raise user_error(
                "E0801",
                f"the worker of an AsynchronousDataAccessor could not be started: {type(error).__name__}: {error}",
                remedy=_REMEDY,
            ) from error
        finally:
            theirs.close()
            shipment.close()
        _connections.add(self.connection)
        self._path = shipment.path
        self.stop = util.Finalize(self, _stop_process, (self.process, self.connection), exitpriority=100)

    def send(self, *message):
        with contextlib.suppress(OSError):  # the wait for the next element reports a process that died
            self.connection.send(message)

    def receive(self):
        """The next message; None if the process is dead and has no more messages."""
        try:
            while not self.connection.poll(ALIVE_CHECK_SECONDS):
                if not self.process.is_alive() and not self.connection.poll(0):
                    return None
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def receive_slots(self, layout, count):
        """The slots, whose memory follows a message."""
        fd = reduction.recv_handle(self.connection)
        try:
            return Slots(layout, count, fd)
        finally:
            os.close(fd)

    def remove_file(self):
        """Removes the temporary file of a process that died."""
        if self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)


class AsynchronousDataAccessor:
    """Iterates a data set in another process, ahead of the consumer.

    Both processes share the memory of an element's tensors. The tensors are valid until the next element is requested,
    so clone those that you keep. Tuples are delivered as lists.

    Args:
        dataset: an object that can be iterated again and again, such as a DataLoader. Elements are tensors, lists,
            tuples or dicts of tensors, or types with a registered parser, all of the same form and shapes. Tensors are
            converted to the types of the first element's.
        buffer_size: elements that may be loaded ahead.
        miss_sleep_time_in_ms: 0 makes the process poll while the buffer is full; otherwise it waits for a message.
        load_indefinitely: begin the next epoch at the end of the data set, before it is requested.
        early_preload: fill the buffer at once, not only when the first iterator is made.
        sharing_strategy: how the data set reaches the process.
        rebatched_size: concatenate elements along their first dimension into batches of this many rows.
    Raises:
        poptorch.Error: the process could not load a first element.
    Threads: one caller at a time.
    """

    def __init__(
        self,
        dataset: Any,
        buffer_size: int = 3,
        miss_sleep_time_in_ms: float = 0.1,
        load_indefinitely: bool = True,
        early_preload: bool = False,
        sharing_strategy: Any = SharingStrategy.ForkServer,
        rebatched_size: Any = None,
    ) -> None:
        self._worker = None
        for name, value, kinds, expected, least in (
            ("buffer_size", buffer_size, numbers.Integral, "an int", 1),
            ("rebatched_size", rebatched_size, (numbers.Integral, type(None)), "an int, or None", 2),
            ("miss_sleep_time_in_ms", miss_sleep_time_in_ms, numbers.Real, "a number", 0),
        ):
            require_type("AsynchronousDataAccessor", name, value, kinds, expected)
            if value is not None and not value >= least:
                raise refused(AssertionError, f"{name} is {value}, expected {least} or more")
        # A DataLoader has rules of its own.
        rules = getattr(dataset, "_rules_for_accessor", None)
        keep_rest, short_last, may_be_empty = (False, False, False) if rules is None else rules(rebatched_size)
        self._dataset = dataset
        self._rebatched_size = rebatched_size
        self._generation = 0
        self._held = None  # the slot of the last element, which the consumer may still read
        self._taken = 0  # elements of this epoch that the consumer has seen
        self._states = None  # random states of the process at the start of this epoch; after its end those at the end
        self._is_sought = False  # the process is at the position of the next element
        self._ended = False  # the consumer has seen the end of this epoch
        self._worker_waits = False  # the process waits for a request before it begins an epoch
        self._is_going = early_preload
        self._death = None  # how the process ended
        self._first = None  # the message of the first element, until the element is requested
        settings = Settings(
            buffer_size,
            miss_sleep_time_in_ms == 0,
            load_indefinitely,
            early_preload,
            rebatched_size,
            keep_rest,
            short_last,
            # The start method of this process. The new process would otherwise use the one that it was started with.
            multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0],
        )
        self._worker = _Worker(dataset, SharingStrategy(sharing_strategy), settings)
        try:
            self._receive_first(may_be_empty)
        except BaseException:
            self.terminate()
            raise

    def _receive(self):
        """The next element, end or error; None if the process is dead. Notes the messages before it."""
        while True:
            message = self._worker.receive()
            kind = None if message is None else message[0]
            if kind == "memory":
                _, layout, count, self._element = message
                self._slots = self._worker.receive_slots(layout, count)
            elif kind != "epoch":
                return message
            elif message[1] == self._generation:
                self._states = pickle.loads(message[2])

    def _receive_first(self, may_be_empty):
        """Waits for the first element, which defines the form of all elements."""
        message = self._receive()
        is_empty = message is not None and message[0] == "end"
        if (message is not None and message[0] == "data") or (is_empty and may_be_empty):
            self._first = message
            return
        cause = "the data set yields no element" if is_empty else self._tell(message)
        self._worker.remove_file()
        raise user_error(
            "E0801",
            f"the worker thread of an AsynchronousDataAccessor failed to start: {cause}",
            expected="a data set that yields at least one element, or batch when rebatching",
            remedy=_REMEDY if message is None else "",
        )

    def _tell(self, message):
        """Writes how the process ended to stderr. Returns: the text for an exception."""
        self._worker.process.join(_JOIN_SECONDS)
        if message is None:
            return f"its process ended with exit code {self._worker.process.exitcode}"
        print(message[1], file=sys.stderr, flush=True)
        return message[1].strip()

    def terminate(self) -> None:
        """Stops the process. The accessor cannot be iterated any more. Tensors that it returned stay valid."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None

    def __len__(self) -> int:
        if self._rebatched_size is None:
            return len(self._dataset)
        return len(self._dataset) * self._dataset.batch_size // self._rebatched_size

    def _require_running(self):
        if self._worker is None:
            raise refused(AssertionError, "the AsynchronousDataAccessor was terminated: it cannot be iterated")
        if self._death is not None:
            raise refused(AssertionError, f"AsynchronousDataAccessor worker thread died: {self._death}")

    # Iteration -------------------------------------------------------------------------------------------------------
    def __iter__(self) -> Self:
        """Begins an epoch, with the first element of the data set. Returns self."""
        self._require_running()
        if not self._is_sought:
            if (self._taken and not self._ended) or self._worker_waits:
                self._restart(0, None)
            self._taken, self._ended = 0, False
        self._let_go()
        return self

    def _restart(self, elements, states):
        self._generation += 1
        packed = None if states is None else pickle.dumps(states)
        self._worker.send("restart", self._generation, elements, packed)
        self._worker_waits = False

    # Positions for checkpoints, in the form of a DataLoader's.
    def _position(self):
        """(number of elements taken from the current epoch, or None between two epochs; the process's random states at
        the start of the epoch)."""
        self._require_running()
        return (None if self._ended or not self._taken else self._taken), self._states

    def _seek(self, elements, states):
        """Makes the next epoch the one of _position(), after the elements that were taken from it."""
        self._require_running()
        self._restart(elements or 0, states)
        self._taken, self._ended, self._is_sought = elements or 0, False, True
        self._states = states

    def _is_in_order(self):
        """False: a position of it means nothing to C++. See DataLoader."""
        return False

    def _let_go(self):
        if not self._is_going:
            self._is_going = True
            self._worker.send("go")

    def __next__(self) -> Any:
        """The next element. It may overwrite the tensors of the previous one."""
        self._require_running()
        self._is_sought = False
        if self._held is not None:
            self._worker.send("free", self._held)
            self._held = None
        if self._ended:
            if self._worker_waits:
                raise StopIteration
            self._taken, self._ended = 0, False
        self._let_go()
        while True:
            message, self._first = self._first or self._receive(), None
            if message is None or message[0] == "error":
                self._death = self._tell(message)
                self._require_running()
            kind, generation, *values = message
            if generation != self._generation:
                if kind == "data":
                    self._worker.send("free", values[0])
                continue
            if kind == "end":
                self._ended, self._worker_waits = True, values[0]
                self._states = pickle.loads(values[1])
                raise StopIteration
            return self._element_of(*values)

    def _element_of(self, slot, rows):
        self._held = slot
        self._taken += 1
        tensors = self._slots.tensors[slot]
        if rows is not None:
            tensors = [tensor[:count] if tensor.dim() else tensor for tensor, count in zip(tensors, rows, strict=True)]
        return structures.reconstructTensorStructure(self._element, [tensor[...] for tensor in tensors])
