"""Ending a run at a step of its own choice when the system asks it to end."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from signal import Signals
from types import FrameType

from ._errors import userError
from ._process_group import anyOf


class Stop:
    """Whether the process was asked to stop: true where it was."""

    def __init__(self) -> None:
        self._signal = 0

    def __bool__(self) -> bool:
        return self._signal != 0

    @property
    def requested(self) -> bool:
        """Was the process asked to stop?"""
        return bool(self)

    @property
    def signal(self) -> Signals | None:
        """The signal that came first; None: none came."""
        return Signals(self._signal) if self._signal else None

    def agreed(self) -> bool:
        """Was any of the processes asked to stop? All of them ask, at the same step, and get the same answer.

        The first step of a training of several processes connects them; before it, each is alone.
        """
        return anyOf(self.requested)


@contextlib.contextmanager
def stop_on_signal(*signals: signal.Signals) -> Iterator[Stop]:
    """While the block runs, the signals do not end the program: they are noted, and the program looks for them::

        with abele.stop_on_signal() as stop:
            for batch in loader:
                model(*batch)
                step += 1
                if stop:
                    abele.save_checkpoint(folder, model, loader, step=step)
                    break

    The step that runs when a signal comes is finished. Whoever asks a second time gets what the signal does without
    this: SIGINT a KeyboardInterrupt, SIGTERM the end of the process. Behind the block all is as before.

    Args:
        signals: SIGTERM and SIGINT where none is given.
    Yields: an object that is true once a signal has come.
    Raises: E0708 in another thread than the main one, which alone may handle signals, and for a signal that no program
        can handle.
    """
    stop, formers = Stop(), {}

    def note(number: int, frame: FrameType | None) -> None:
        if not stop:
            stop._signal = number
            return
        signal.signal(number, formers[number])
        signal.raise_signal(number)

    with contextlib.ExitStack() as stack:
        for each in _known(signals or (signal.SIGTERM, signal.SIGINT)):
            formers[each] = signal.getsignal(each) or signal.SIG_DFL  # None: a handler of C, which Python cannot set
            try:
                signal.signal(each, note)
            except (OSError, ValueError) as error:
                raise _refusal(f"{each!r} cannot be noted: {error}") from error
            stack.callback(signal.signal, each, formers[each])
        yield stop


def _known(signals: Iterable[signal.Signals]) -> list[signal.Signals]:
    if threading.current_thread() is not threading.main_thread():
        raise _refusal(f"stop_on_signal in the thread {threading.current_thread().name}")
    try:
        return [signal.Signals(each) for each in signals]
    except ValueError as error:
        raise _refusal(str(error)) from error


def _refusal(what: str) -> Exception:
    return userError(
        "E0708",
        what,
        expected="the main thread, and signals that a program may handle, such as SIGTERM and SIGINT",
        remedy="open the block in the main thread and hand its object to the others",
    )
