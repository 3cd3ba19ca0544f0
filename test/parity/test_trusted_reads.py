"""Options.trustReads: what forward reads stays what it was, and each step checks it."""

import poptorch
import pytest
import torch


def options(**settings):
    opts = poptorch.Options().trustReads(True)
    opts.deviceIterations(settings.get("iterations", 1))
    return opts


class Checks(torch.nn.Module):
    def forward(self, x, labels):
        if not torch.isfinite(x).all():
            raise ValueError("infinite input")
        if labels.max() >= 10:
            raise ValueError("a label out of range")
        return x.gather(1, labels[:, None]) * 2


X, LABELS = torch.arange(40.0).reshape(4, 10), torch.tensor([1, 9, 0, 3])


def test_checks_of_inputs():
    model = poptorch.inferenceModel(Checks(), options())
    for x, labels in ((X, LABELS), (X * 3, LABELS.flip(0))):
        assert torch.equal(model(x, labels), Checks()(x, labels))
    infinite = X.clone()
    infinite[2, 3] = float("nan")
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: a value that forward read") as raised:
        model(infinite, LABELS)
    assert "test_trusted_reads.py:16" in str(raised.value) and "false" in str(raised.value)
    assert torch.equal(model(X, LABELS), Checks()(X, LABELS))


def test_every_micro_batch_is_checked():
    model = poptorch.inferenceModel(Checks(), options(iterations=2))
    model(X, LABELS)
    infinite = X.clone()
    infinite[3, 3] = float("inf")
    with pytest.raises(poptorch.Error, match="E0101"):
        model(infinite, LABELS)


QUESTIONS = {
    "all": lambda mask: mask.all(),
    "any": lambda mask: not (~mask).any(),
    "sum": lambda mask: mask.sum() == mask.numel(),
    "largest": lambda mask: (1 - mask.long()).max() < 1,
    "written in place": lambda mask: (mask.sum() != mask.numel()).logical_not_(),
    "one of two results": lambda mask: mask.flatten().long().min(0)[0].bool(),
    "second of two results": lambda mask: mask.flatten().long().min(0)[1].bool().logical_not(),
}


class SkipsItsMask(torch.nn.Module):
    """Takes the shorter way where nothing is masked, as attention does."""

    def forward(self, x, mask, question):
        skips = QUESTIONS[question](mask)
        return x * 2 if skips else torch.where(mask, x * 2, 0.0)


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("is_masked", [False, True])
def test_questions_about_all_elements_are_asked_again_in_every_step(question, is_masked):
    model, mask = poptorch.inferenceModel(SkipsItsMask()), torch.ones(4, 10, dtype=torch.bool)
    other = mask.clone()
    (mask if is_masked else other)[1, 2] = False
    for x in (X, X + 1):
        assert torch.equal(model(x, mask, question), SkipsItsMask()(x, mask, question))
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: a value that forward read") as raised:
        model(X, other, question)
    assert "test_trusted_reads.py:" in str(raised.value)
    assert torch.equal(model(X, mask, question), SkipsItsMask()(X, mask, question))


def test_without_the_option_they_are_refused_and_it_is_named():
    for read in (lambda x: x.sum() > 0, lambda x: x.max().item(), lambda x: x.long().max() > 0):

        class Reads(torch.nn.Module):
            def forward(self, x):
                return x * 2 if read(x) else x  # noqa: B023 (called at once)

        with pytest.raises(poptorch.Error, match="E0101 data-dependent") as raised:
            poptorch.inferenceModel(Reads())(X)
        assert "trustReads(True)" in str(raised.value)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x[0, 0].item(),
        lambda x: float(x.numpy()[0, 0]),
        lambda x: x.tolist()[0][0],
        lambda x: float(x.__array__().max() > 0),
    ],
)
def test_numbers_must_be_the_same(read):
    class Scales(torch.nn.Module):
        def forward(self, x):
            return x * read(x[:1].detach())

    model = poptorch.inferenceModel(Scales(), options())
    assert torch.equal(model(X + 1), Scales()(X + 1))
    with pytest.raises(poptorch.Error, match="E0101"):
        model(X + 2)


def test_lengths_of_packed_sequences():
    class Packed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = torch.nn.LSTM(3, 4, batch_first=True)

        def forward(self, x, lengths):
            packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return torch.nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0]

    torch.manual_seed(0)
    model, x, lengths = Packed(), torch.randn(2, 5, 3), torch.tensor([3, 5])
    compiled = poptorch.inferenceModel(model)  # lengths are integers: they need no trust
    for batch in (x, x * 2):
        assert torch.equal(compiled(batch, lengths), model(batch, lengths).detach())
    with pytest.raises(poptorch.Error, match="E0101 data-dependent: a value that forward read"):
        compiled(x, lengths.flip(0))


def test_a_training_step_that_fails_leaves_the_weights():
    class Trained(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(10, 10)

        def forward(self, x):
            assert torch.isfinite(x).all()
            return poptorch.identity_loss(self.layer(x), reduction="mean")

    model = Trained()
    compiled = poptorch.trainingModel(model, options(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    compiled(X)
    before = model.layer.weight.detach().clone()
    with pytest.raises(poptorch.Error, match="E0101"):
        compiled(X * float("inf"))
    assert torch.equal(model.layer.weight, before)
    compiled(X)
    assert not torch.equal(model.layer.weight, before)
