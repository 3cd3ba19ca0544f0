"""Serving: one model, many callers. The same queue as C++'s abele::Server (include/abele/server.h)."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import torch

from . import structures, wrapping
from ._arguments import formOfKinds
from ._errors import userError
from ._item_access import replaced
from ._native import core

if TYPE_CHECKING:
    from .executor import Executor

_MOST_HOPELESS = 1000  # kinds of requests that a server remembers to be wrong


@dataclasses.dataclass(frozen=True)
class ServerStatistics:
    """Since the server was made. Times are from submit() to the answer, of the last 10,000 requests.

    Attributes:
        requests: that were answered, with results or with an error.
        failed: of these, with an error.
        rows: of these requests.
        batches: calls of the model that gave results.
        filling_rows: of batches that were not full.
        waiting_rows: in the queue now.
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
    """What a request will get. Threads: safe."""

    def __init__(self, native: Any, calls: _Calls, form: str) -> None:
        self._native, self._calls, self._form = native, calls, form

    def done(self) -> bool:
        """Is it there, results or error?"""
        done: bool = self._native.done()
        return done

    def result(self, timeout: float | None = None) -> Any:
        """Waits, and returns what forward returned for these rows, or raises what the model raised.

        Args:
            timeout: seconds; None waits for as long as it takes.
        Raises: TimeoutError; the answer can still be asked for then.
        """
        if not self._native.wait(-1.0 if timeout is None else max(timeout, 0.0)):
            raise TimeoutError(f"no answer within {timeout} s")
        return self._calls.resultOf(self._form, self._native.take())


class _Calls:
    """The model, and the structures of its arguments and results by the form of a request."""

    def __init__(self, model):
        self._model = model
        self._lock = threading.Lock()
        self._given = {}
        self._results = {}
        # Of batches, on the server's thread: types and sizes by form of those that were answered, and errors by form,
        # types and sizes of those that no request can be right in.
        self._answered = {}
        self._hopeless = {}

    def flat(self, args, kwargs):
        """(form, tensors) of a request."""
        positional, named = self._model._args_parser.bind(args, kwargs)
        form = formOfKinds((positional, named))
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
            if answered is not None and kind not in answered and self._isHopeless(form, answered[0], kind):
                self._hopeless[form, kind] = error
            raise
        answered = self._answered.setdefault(form, [])
        if kind not in answered:
            answered.append(kind)
        self._results[form] = structures.skeleton(result)
        return structures.flattenTensorStructure(result)

    def _isHopeless(self, form, right, wrong):
        """Does forward fail for all tensors of these types and sizes? Only then is it right not to try again: one
        request with wrong values must not shut out others of its kind. So forward runs on tensors without values: it
        gets through with types and sizes that were answered, and fails with these."""
        if len(self._hopeless) >= _MOST_HOPELESS:
            return False
        return self._runsWithoutValues(form, right) is True and self._runsWithoutValues(form, wrong) is False

    def _runsWithoutValues(self, form, kind):
        """None where forward asks for values, or calls what cannot do without."""
        from torch._subclasses import fake_tensor

        mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
        quiet = replaced("disabled", True, fake_tensor.log)  # what fails inside is expected
        with mode, torch.no_grad(), wrapping.withoutPull(), quiet:
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

    def resultOf(self, form, tensors):
        return structures.reconstructTensorStructure(self._results[form], tensors)


class Server:
    """A model behind a queue, made by serve(). Threads: safe.

    A with block stops it at its end; so does the end of the program.
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
            raise userError(
                "E0708",
                f"a server of a {type(model).__name__}"
                + (" for training" if getattr(model, "_training", False) else ""),
                expected="what abele.inferenceModel or abele.load returned",
            )
        self._calls = _Calls(model)
        self._native = core().Batcher(
            self._calls.run,
            _batchRows(model) if batch_rows is None else batch_rows,
            longest_wait_ms / 1000,
            most_waiting_rows,
            most_shapes,
        )
        self._end = weakref.finalize(self, self._native.stop)  # also at the end of the program, before threads end

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Rows in, the same rows of what forward returns out. Takes the arguments of forward.

        Shapes: each tensor [rows, ...], any number of rows, more than a batch too.
        Raises: E0708 for tensors without rows, E0704 for shapes beyond most_shapes, E0705 behind stop(), and what the
            model raises for these rows.
        """
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> Answer:
        """The same for later. Waits only where the queue is full."""
        return cast(Answer, self._submit(args, kwargs, wait=True))

    def try_submit(self, *args: Any, **kwargs: Any) -> Answer | None:
        """The same without waiting: None where the queue is full."""
        return self._submit(args, kwargs, wait=False)

    def _submit(self, args: Any, kwargs: Any, wait: bool) -> Answer | None:
        form, tensors = self._calls.flat(args, kwargs)
        native = self._native.submit(form, tensors, wait)
        return None if native is None else Answer(native, self._calls, form)

    def stop(self) -> None:
        """Answers what was submitted, and takes no more."""
        self._native.stop()

    def statistics(self) -> ServerStatistics:
        """Requests, batches and latencies so far."""
        return ServerStatistics(**self._native.statistics())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def serve(
    model: Executor,
    *,
    batch_rows: int | None = None,
    longest_wait_ms: float = 2.0,
    most_waiting_rows: int = 1024,
    most_shapes: int = 16,
) -> Server:
    """Puts a model behind a queue: requests of many threads run together in batches, each caller gets its rows back.

    The model returns rows for rows, each result a fixed number of them for each row of the batch (OutputMode.All, which
    inference has where nothing else is chosen), and rows do not depend on one another. A batch that is not full is
    filled with copies of a row. Where a batch fails, its requests run again in smaller ones: only those that fail alone
    get the error. Nobody else may call the model in between with other arguments that it would have to compile for.

    Args:
        model: of inferenceModel or load.
        batch_rows: rows of one call; None: those that the model is compiled for.
        longest_wait_ms: how long a request waits at most for others to fill its batch.
        most_waiting_rows: of the queue; beyond them submit() waits and try_submit() gives None.
        most_shapes: shapes and types of requests, each of which has a compiled program of its own.
    Returns: a Server.
    Raises: E0705 where batch_rows is missing and the model is not compiled, E0702 for numbers that cannot be, E0708 for
        a model that trains.
    """
    return Server(model, batch_rows, longest_wait_ms, most_waiting_rows, most_shapes)


def _batchRows(model):
    """Rows of the first tensor of a call."""
    sizes = model._native.inputSizes()
    if sizes and sizes[0]:
        return sizes[0][0]
    raise userError(
        "E0705",
        "a server of a model that is not compiled, without a number of rows",
        remedy="call model.compile(...) or load a compiled one, or pass batch_rows",
    )
