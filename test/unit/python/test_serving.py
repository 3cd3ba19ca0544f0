"""abele.serve: many callers of one model, each with its rows or its own error."""

import random
import subprocess
import textwrap
import threading

import abele
import numpy
import pytest
import torch
from support import warm

BATCH, WORDS, FOR_EVER_MS = 8, 50, 1e8


class LookUp(torch.nn.Module):
    """Numbers that all kernels compute exactly: the answer does not depend on a row's place in a batch."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(WORDS, 2)
        with torch.no_grad():
            self.table.weight.copy_(torch.arange(2.0 * WORDS).reshape(WORDS, 2))

    def forward(self, ids, options=None):
        scale = 3 if options is None else options["scale"]
        return {"sum": self.table(ids).sum(1), "scaled": ids * scale}


def served(**settings):
    settings = {"batch_rows": BATCH, "longest_wait_ms": 0, **settings}
    return abele.serve(abele.inferenceModel(LookUp().eval()), **settings)


class Cast(torch.nn.Module):
    def forward(self, x, kind, factors):
        return x.to(kind) * torch.from_numpy(factors).to(kind)


def test_requests_with_other_values_are_not_answered_together():
    x, ones = torch.tensor([[1.5]]), numpy.ones(1)
    with abele.serve(abele.inferenceModel(Cast()), batch_rows=1, longest_wait_ms=0) as server:
        for kind, factors in ((torch.float32, ones), (torch.int32, ones), (torch.int32, ones * 2)):
            found = server(x, kind, factors)
            assert found.dtype == kind and found.item() == int(factors[0]) * (1 if kind is torch.int32 else 1.5)


def ids_of(rows, first=0):
    return (torch.arange(rows * 4).reshape(rows, 4) + first) % WORDS


def is_answer(ids, found):
    sums = torch.stack([2 * ids.sum(1), 2 * ids.sum(1) + 4], 1).float()
    return (
        found.keys() == {"sum", "scaled"} and torch.equal(found["sum"], sums) and torch.equal(found["scaled"], ids * 3)
    )


def test_many_callers():
    threads, requests, wrong = 32, 40, []
    counts = {"bad": 0}
    lock = threading.Lock()

    def call(thread):
        numbers = random.Random(thread)
        for i in range(requests):
            ids = ids_of(numbers.randint(1, 20), numbers.randrange(WORDS))
            is_bad = (thread * requests + i) % 100 == 7
            if is_bad:
                ids[-1, 3] = WORDS
                with lock:
                    counts["bad"] += 1
            try:
                found = server(ids)
                if is_bad or not is_answer(ids, found):
                    wrong.append((thread, i, found))
            except Exception as error:
                if not is_bad:
                    wrong.append((thread, i, error))

    with served(longest_wait_ms=0.1) as server:
        assert is_answer(ids_of(1), server(ids_of(1)))
        callers = [threading.Thread(target=call, args=(thread,)) for thread in range(threads)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert not wrong, wrong[:3]
        found = server.statistics()
    assert found.requests == threads * requests + 1 and found.failed == counts["bad"] > 5
    assert found.waiting_rows == 0 and found.rows > found.requests
    assert 0 < found.p50_s <= found.p90_s <= found.p99_s <= found.longest_s


def test_batches_are_filled_by_requests():
    with served(longest_wait_ms=FOR_EVER_MS) as server:
        first, second = server.submit(ids_of(3, 1)), server.submit(ids=ids_of(5, 2))
        assert is_answer(ids_of(3, 1), first.result()) and is_answer(ids_of(5, 2), second.result(timeout=100))
        assert first.done() and server.statistics().batches == 1
        waits = server.submit(ids_of(2))
        assert not waits.done()
        with pytest.raises(TimeoutError):
            waits.result(timeout=0)
    assert is_answer(ids_of(2), waits.result())
    assert server.statistics().filling_rows == BATCH - 2
    with pytest.raises(abele.Error, match="E0705"):
        server(ids_of(1))


def test_a_full_queue():
    with served(longest_wait_ms=FOR_EVER_MS, most_waiting_rows=4) as server:
        first = server.submit(ids_of(3))
        assert server.try_submit(ids_of(2)) is None
        second = server.try_submit(ids_of(1))
    assert is_answer(ids_of(3), first.result()) and is_answer(ids_of(1), second.result())


def test_requests_of_several_structures_and_shapes():
    with served(most_shapes=3) as server:
        assert is_answer(ids_of(2), server(ids_of(2)))
        scaled = server(ids_of(2), {"scale": torch.full((2, 4), 5)})["scaled"]
        assert torch.equal(scaled, ids_of(2) * 5)
        assert server(torch.ones(3, 6, dtype=torch.long))["sum"].tolist() == [[12, 18]] * 3
        with pytest.raises(abele.Error, match="E0704.*kind"):
            server(torch.ones(3, 5, dtype=torch.long))


class Counted(torch.nn.Module):
    """Notes the shapes that forward sees, of tensors with values."""

    def __init__(self, seen):
        super().__init__()
        self.table, self.scale = torch.nn.Embedding(WORDS, 2), torch.nn.Parameter(torch.ones(4, 2))
        self.note = seen.append

    def forward(self, ids):
        if type(ids) is torch.Tensor:
            self.note(tuple(ids.shape))
        return (self.table(ids) * self.scale[: ids.shape[1]]).sum(1)


def test_a_shape_that_is_wrong_for_any_values_is_captured_once(capfd):
    seen = []
    with abele.serve(abele.inferenceModel(Counted(seen).eval()), batch_rows=BATCH, longest_wait_ms=0) as server:
        server(ids_of(2))
        for _ in range(4):
            with pytest.raises(RuntimeError, match="size of tensor"):
                server(torch.ones(3, 6, dtype=torch.long))
        assert seen.count((BATCH, 6)) == 1
        assert server(ids_of(2)).shape == (2, 2)
    assert "Traceback" not in capfd.readouterr().err


def test_wrong_values_do_not_shut_out_others_of_their_shape():
    net = Counted([]).eval()
    with abele.serve(abele.inferenceModel(net), batch_rows=BATCH, longest_wait_ms=0) as server:
        server(ids_of(2))
        for _ in range(3):
            with pytest.raises(IndexError):
                server(torch.full((3, 2), WORDS))
        expected = net.table(torch.ones(3, 2, dtype=torch.long)).sum(1)
        assert torch.allclose(server(torch.ones(3, 2, dtype=torch.long)), expected)


def test_requests_of_which_none_was_answered_are_tried_again():
    """Whether they are wrong, or their values are, shows beside one that was answered."""
    failing = [True]

    class Waking(torch.nn.Module):
        def forward(self, x):
            if failing:
                raise ValueError("asleep")
            return x * 2

    with abele.serve(abele.inferenceModel(Waking()), batch_rows=BATCH, longest_wait_ms=0) as server:
        for _ in range(2):
            with pytest.raises(ValueError, match="asleep"):
                server(torch.ones(2, 3))
        failing.clear()
        assert torch.equal(server(torch.ones(2, 3)), torch.full((2, 3), 2.0))
        failing.append(True)
        with pytest.raises(ValueError, match="asleep"):
            server(torch.ones(2, 5))
        failing.clear()
        assert torch.equal(server(torch.ones(2, 5)), torch.full((2, 5), 2.0))


def test_a_compiled_model_knows_its_batch(tmp_path):
    model = abele.inferenceModel(LookUp().eval())
    with pytest.raises(abele.Error, match="E0705"):
        abele.serve(model)
    model.compile(ids_of(BATCH))
    with abele.serve(model, longest_wait_ms=FOR_EVER_MS) as server:
        assert is_answer(ids_of(BATCH), server(ids_of(BATCH)))


def test_what_is_refused():
    with served() as server:
        for wrong in (torch.ones((), dtype=torch.long), torch.ones(0, 4, dtype=torch.long)):
            with pytest.raises(abele.Error, match="E0708"):
                server(wrong)
        with pytest.raises(AssertionError):
            server(ids_of(1), unknown=1)
    for wrong in ({"batch_rows": -1}, {"longest_wait_ms": -1}, {"most_waiting_rows": 0}):
        with pytest.raises(abele.Error, match="E0702"):
            served(**wrong)
    net = torch.nn.Linear(2, 2)
    with pytest.raises(abele.Error, match="E0708.*training"):
        abele.serve(abele.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1)), batch_rows=1)


def test_a_program_that_ends_without_stopping_it():
    program = """
        import abele, torch

        server = abele.serve(abele.inferenceModel(torch.nn.Linear(2, 2)), batch_rows=4, longest_wait_ms=1e8)
        answer = server.submit(torch.ones(1, 2))
    """
    done = subprocess.run([*warm.python(), "-c", textwrap.dedent(program)], text=True, capture_output=True, timeout=300)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
