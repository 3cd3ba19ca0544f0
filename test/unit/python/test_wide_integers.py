"""int64: abele computes and returns it; poptorch narrows to int32 and takes int32 where int64 was compiled."""

import abele
import poptorch
import pytest
import torch

LARGE = 2**40


class Net(torch.nn.Module):
    """Makes int64 values in every possible way."""

    def __init__(self):
        super().__init__()
        self.register_buffer("held", torch.tensor([LARGE, -LARGE]))
        self.plain = torch.tensor([3, LARGE])

    def forward(self, x):
        scores = x.float()
        return (
            x,
            x + self.held,
            x * self.plain,
            torch.arange(LARGE, LARGE + 2),
            torch.full((2,), -LARGE),
            scores.argmax(),
            x.sum(),
            torch.sort(scores).indices,
            self.held[torch.tensor([1, 0])],
            torch.randint(LARGE, LARGE + 1, (2,)),
            x.to(torch.float64),
        )


def test_abele_keeps_int64():
    x = torch.tensor([LARGE, 7])
    expected = Net()(x)
    for found in (abele.inferenceModel(Net())(x), abele.inferenceModel(Net(), poptorch.Options())(x)):
        assert [value.dtype for value in found] == [value.dtype for value in expected]
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.parametrize("mode", [poptorch.OutputMode.All, poptorch.OutputMode.Final, poptorch.OutputMode.Sum])
def test_abele_keeps_int64_of_several_micro_batches(mode):
    class Echo(torch.nn.Module):
        def forward(self, x):
            return x + 1

    x = torch.tensor([LARGE, LARGE + 1, 5, 6])
    found = abele.inferenceModel(Echo(), poptorch.Options().deviceIterations(2).outputMode(mode))(x)
    parts = (x + 1).view(2, 2)
    expected = {"All": x + 1, "Final": parts[1], "Sum": parts.sum(0)}[mode.name]
    assert found.dtype == torch.int64 and torch.equal(found, expected)


def test_abele_trains_with_int64_results_and_writes_int64_back():
    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(2, 2)
            self.register_buffer("count", torch.tensor(LARGE))

        def forward(self, x, target):
            self.count += 1
            target += LARGE
            loss = torch.nn.functional.mse_loss(self.fc(x), torch.zeros(2, 2))
            return loss, self.count, target

    model, target = Trained(), torch.zeros(2, dtype=torch.int64)
    _, count, returned = abele.trainingModel(model)(torch.ones(2, 2), target)
    assert count.dtype == returned.dtype == torch.int64 and int(count) == LARGE + 1 == int(model.count)
    assert target.tolist() == returned.tolist() == [LARGE, LARGE]


def counting(executor, start, calls=3):
    t = start
    for _ in range(calls):
        t = executor(t)
    return t


class Next(torch.nn.Module):
    def forward(self, t):
        return t + 1


@pytest.mark.parametrize("wrap", [poptorch.inferenceModel, abele.inferenceModel])
def test_results_can_be_arguments(wrap):
    found = counting(wrap(Next()), torch.tensor([1, 2]))
    assert found.tolist() == [4, 5]
    assert found.dtype == (torch.int32 if wrap is poptorch.inferenceModel else torch.int64)
    found = counting(wrap(Next()), torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert found.tolist() == [4, 5]
    assert found.dtype == (torch.float32 if wrap is poptorch.inferenceModel else torch.float64)


def test_results_in_structures_can_be_arguments():
    class Pair(torch.nn.Module):
        def forward(self, pair):
            return {"a": pair["a"] + 1, "b": [pair["b"][0] * 2]}

    executor = poptorch.inferenceModel(Pair())
    found = counting(executor, {"a": torch.tensor([1]), "b": [torch.tensor([1])]})
    assert found["a"].tolist() == [4] and found["b"][0].tolist() == [8]
    with pytest.raises(poptorch.Error, match="E0704"):
        executor({"a": torch.tensor([1], dtype=torch.int16), "b": [torch.tensor([1])]})


def test_an_int32_argument_is_written_back_as_int32():
    class Write(torch.nn.Module):
        def forward(self, x):
            x += 1
            return x * 2

    executor = poptorch.inferenceModel(Write())
    executor(torch.tensor([1, 2]))
    x = torch.tensor([1, 2], dtype=torch.int32)
    assert executor(x).tolist() == [4, 6] and x.tolist() == [2, 3]


def test_a_saved_program_takes_int32_as_well(tmp_path):
    executor = poptorch.inferenceModel(Next())
    executor(torch.tensor([1]))
    executor.save(str(tmp_path / "model.poptorch"))
    found = counting(poptorch.load(str(tmp_path / "model.poptorch")), torch.tensor([1]))
    assert found.tolist() == [4] and found.dtype == torch.int32


def test_an_anchor_that_does_not_fit_is_refused():
    opts = poptorch.Options()
    opts.anchorTensor("x", "input")
    executor = poptorch.inferenceModel(Next(), opts)
    executor.compile(torch.tensor([1]))
    name = next(name for name in executor.getTensorNames() if name.startswith("input"))
    opts = poptorch.Options()
    opts.anchorTensor("x", name)
    executor = poptorch.inferenceModel(Small(), opts)
    executor(torch.tensor([LARGE]))
    with pytest.raises(poptorch.Error, match="E0609"):
        executor.getAnchoredTensor("x")


class Small(torch.nn.Module):
    def forward(self, x):
        return x // LARGE
