"""Ends a run after a step when the system asks the process to end."""

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator
from signal import Signals
from types import FrameType

from ._errors import user_error
from ._process_group import any_of


class Stop:
    """Whether the process was asked to stop. Its truth value is requested()."""

    def __init__(self) -> None:
        self._signal = 0

    def __bool__(self) -> bool:
        return self._signal != 0

    @property
    def requested(self) -> bool:
        """True if the process was asked to stop."""
        return bool(self)

    @property
    def signal(self) -> Signals | None:
        """The first signal that came, or None."""
        return Signals(self._signal) if self._signal else None

    def agreed(self) -> bool:
        """True if any of the processes was asked to stop. All call it at the same step and get the same answer.

        The first step of a training with several processes connects them. Before that, each answers for itself.
        """
        return any_of(self.requested)


@contextlib.contextmanager
def stop_on_signal(*signals: signal.Signals) -> Iterator[Stop]:
    """While the block runs, the signals do not end the program. They are noted, and the program checks for them::

        with abele.stop_on_signal() as stop:
            for batch in loader:
                model(*batch)
                step += 1
                if stop:
                    abele.save_checkpoint(folder, model, loader, step=step)
                    break

    The step that runs when a signal comes is finished. A second signal acts as it would without this block: SIGINT
    raises a KeyboardInterrupt, SIGTERM ends the process. After the block the previous handlers are back.

    Args:
        signals: default: SIGTERM and SIGINT.
    Yields: an object that is true once a signal has come.
    Raises: E0708 outside of the main thread, because only that one may handle signals, and for a signal that a program
        cannot handle.
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
            formers[each] = signal.getsignal(each) or signal.SIG_DFL  # None: a handler in C, which cannot be restored
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
    return user_error(
        "E0708",
        what,
        expected="the main thread, and signals that a program may handle, such as SIGTERM and SIGINT",
        remedy="open the block in the main thread and hand its object to the others",
    )
