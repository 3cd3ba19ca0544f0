"""Serving: one model, many callers. The same queue as C++'s abele::Server (include/abele/server.h)."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import TYPE_CHECKING, Any, Self

import torch

from . import structures, wrapping
from ._arguments import form_of_kinds
from ._errors import user_error
from ._item_access import replaced
from ._native import core

if TYPE_CHECKING:
    from .executor import Executor

_MOST_HOPELESS = 1000  # number of kinds of requests that a server remembers as wrong


@dataclasses.dataclass(frozen=True)
class ServerStatistics:
    """Counts since the server was made. Times are from submit() to the answer, over the last 10,000 requests.

    Attributes:
        requests: requests that were answered, with results or with an error.
        failed: requests that were answered with an error.
        rows: rows of the answered requests.
        batches: calls of the model that gave results.
        filling_rows: rows added to fill batches.
        waiting_rows: rows in the queue now.
        p50_s, p90_s, p99_s, longest_s: percentiles of the times, in seconds.
    """

    requests: int
    failed: int
    rows: int
    batches: int
    filling_rows: int
    waiting_rows: int
    p50_s: float
    p90_s: float
    p99_s: float
    longest_s: float


class Answer:
    """The future answer to a request. Threads: safe."""

    def __init__(self, native: Any, calls: _Calls, form: str) -> None:
        self._native, self._calls, self._form = native, calls, form

    def done(self) -> bool:
        """True if the answer is there: results or an error."""
        return self._native.done()

    def result(self, timeout: float | None = None) -> Any:
        """Waits. Returns forward's results for these rows, or raises the model's error.

        Args:
            timeout: seconds; None: no limit.
        Raises: TimeoutError; a later call can still get the answer.
        """
        if not self._native.wait(-1.0 if timeout is None else max(timeout, 0.0)):
            raise TimeoutError(f"no answer within {timeout} s")
        tensors = self._native.take()
        return structures.reconstructTensorStructure(self._calls.results[self._form], tensors)


class _Calls:
    """The model, and the structures of its arguments and results by the form of a request."""

    def __init__(self, model):
        self._model = model
        self._lock = threading.Lock()
        self._given = {}
        self.results = {}
        # Used on the server's thread: types and sizes that were answered, by form, and the errors of those that no
        # request can make succeed.
        self._answered = {}
        self._hopeless = {}

    def flat(self, args, kwargs):
        """(form, tensors) of a request."""
        positional, named = self._model._args_parser.bind(args, kwargs)
        form = form_of_kinds((positional, named))
        with self._lock:
            known = self._given.get(form)
            if known is None:
                known = self._given[form] = structures.skeleton((positional, named))
        return form, structures.flattenTensorStructure((positional, named), known)

    def run(self, form, tensors):
        """One call of the model, on the server's thread."""
        kind = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
        if (form, kind) in self._hopeless:
            raise self._hopeless[form, kind].with_traceback(None)
        positional, named = structures.reconstructTensorStructure(self._given[form], tensors)
        try:
            result = self._model(*positional, **named)
        except Exception as error:
            answered = self._answered.get(form)
            if answered is not None and kind not in answered and self._is_hopeless(form, answered[0], kind):
                self._hopeless[form, kind] = error
            raise
        answered = self._answered.setdefault(form, [])
        if kind not in answered:
            answered.append(kind)
        self.results[form] = structures.skeleton(result)
        return structures.flattenTensorStructure(result)

    def _is_hopeless(self, form, right, wrong):
        """True if forward fails for all tensors of these types and sizes, so that there is no point in trying again. A
        request with wrong values must not make the server refuse others of its kind. So forward runs on tensors without
        values: it must succeed with types and sizes that were answered, and fail with these."""
        if len(self._hopeless) >= _MOST_HOPELESS:
            return False
        return self._runs_without_values(form, right) is True and self._runs_without_values(form, wrong) is False

    def _runs_without_values(self, form, kind):
        """None if forward needs values, or calls functions that need them."""
        from torch._subclasses import fake_tensor

        mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
        quiet = replaced("disabled", True, fake_tensor.log)  # because errors inside are expected
        with mode, torch.no_grad(), wrapping.without_pull(), quiet:
            tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in kind]
            positional, named = structures.reconstructTensorStructure(self._given[form], tensors)
            try:
                self._model.model(*positional, **named)
            except (
                fake_tensor.DataDependentOutputException,
                fake_tensor.DynamicOutputShapeException,
                fake_tensor.UnsupportedFakeTensorException,
                fake_tensor.UnsupportedOperatorException,
            ):
                return None
            except Exception:
                return False
            return True


class Server:
    """A queue of requests for one model, made by serve(). Threads: safe.

    A with block stops it at its end. The end of the program stops it too.
    """

    def __init__(
        self,
        model: Executor,
        batch_rows: int | None,
        longest_wait_ms: float,
        most_waiting_rows: int,
        most_shapes: int,
    ) -> None:
        if getattr(model, "_training", True):
            raise user_error(
                "E0708",
                f"a server of a {type(model).__name__}"
                + (" for training" if getattr(model, "_training", False) else ""),
                expected="what abele.inferenceModel or abele.load returned",
            )
        self._calls = _Calls(model)
        self._native = core().Batcher(
            self._calls.run,
            _batch_rows(model) if batch_rows is None else batch_rows,
            longest_wait_ms / 1000,
            most_waiting_rows,
            most_shapes,
        )
        self._end = weakref.finalize(self, self._native.stop)  # also at the end of the program, before threads end

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Takes the arguments of forward with any rows, and returns forward's results for these rows.

        Shapes: each tensor [rows, ...], with any number of rows, even more than a batch.
        Raises: E0708 for tensors without rows, E0704 for shapes beyond most_shapes, E0705 after stop(), and the model's
            errors for these rows.
        """
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> Answer:
        """Does the same and returns at once with an Answer. Waits only if the queue is full."""
        return self._submit(args, kwargs, wait=True)

    def try_submit(self, *args: Any, **kwargs: Any) -> Answer | None:
        """Does the same without waiting. Returns None if the queue is full."""
        return self._submit(args, kwargs, wait=False)

    def _submit(self, args: Any, kwargs: Any, wait: bool) -> Answer | None:
        form, tensors = self._calls.flat(args, kwargs)
        native = self._native.submit(form, tensors, wait)
        return None if native is None else Answer(native, self._calls, form)

    def stop(self) -> None:
        """Answers the submitted requests, and refuses later ones."""
        self._native.stop()

    def statistics(self) -> ServerStatistics:
        """Requests, batches and latencies so far."""
        return ServerStatistics(**self._native.statistics())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def serve(
    model: Executor,
    *,
    batch_rows: int | None = None,
    longest_wait_ms: float = 2.0,
    most_waiting_rows: int = 1024,
    most_shapes: int = 16,
) -> Server:
    """Puts a model behind a queue. Requests of many threads run together in batches, and each caller gets its rows
    back.

    Each result of the model must have a fixed number of rows per row of the batch (OutputMode.All, the default of
    inference), and rows must not depend on each other. Copies of a row fill an incomplete batch. If a batch fails, its
    requests run again in smaller batches, so only requests that fail alone get the error. Other code must not call the
    model meanwhile with arguments that it would have to compile for.

    Args:
        model: result of inferenceModel or load.
        batch_rows: rows of one call; None: the rows that the model is compiled for.
        longest_wait_ms: the longest time that a request waits for others to fill its batch.
        most_waiting_rows: rows in the queue; beyond them submit() waits and try_submit() returns None.
        most_shapes: largest number of shapes and types of requests. Each has its own compiled program.
    Returns: a Server.
    Raises: E0705 if batch_rows is missing and the model is not compiled, E0702 for impossible numbers, E0708 for a
        model that trains.
    """
    return Server(model, batch_rows, longest_wait_ms, most_waiting_rows, most_shapes)


def _batch_rows(model):
    """Rows of the first tensor of a call."""
    sizes = model._native.inputSizes()
    if sizes and sizes[0]:
        return sizes[0][0]
    raise user_error(
        "E0705",
        "a server of a model that is not compiled, without a number of rows",
        remedy="call model.compile(...) or load a compiled one, or pass batch_rows",
    )
