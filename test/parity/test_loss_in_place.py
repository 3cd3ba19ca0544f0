"""The cross entropy of rows over the memory of its logits: eager PyTorch's bits, in less memory."""

import copy
import json

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn

BACKWARD, FORWARD = "abele_op::cross_entropy_backward_", "abele_op::log_softmax_"


class Classifier(nn.Module):
    """loss(logits, target); returns the logits too, or what `also` makes of them."""

    def __init__(self, classes, loss, also=None):
        super().__init__()
        self.layer, self.loss, self.also = nn.Linear(8, classes), loss, also

    def forward(self, x, target):
        logits = self.layer(torch.tanh(x))
        loss = self.loss(logits.flatten(0, -2), target.flatten())
        if loss.dim() > 0:
            loss = loss.mean()
        return logits if self.also is None else self.also(logits), poptorch.identity_loss(loss, "none")


class Deep(Classifier):
    def __init__(self, classes, loss):
        super().__init__(classes, loss)
        self.first = nn.Linear(8, 8)

    def forward(self, x, target):
        return super().forward(self.first(x), target)


def options_of(fusion, threads, accumulation=2):
    options = poptorch.Options().fusion(fusion)
    options.outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    options.threadsPerDevice(threads)
    return options


def same_bits(a, b):
    return torch.equal(a.nan_to_num(7), b.nan_to_num(7)) and torch.equal(a.isnan(), b.isnan())


def train(model, batch, fusion="exact", threads=1, options=None):
    """Trains compiled and in eager PyTorch for two steps, requires equal bits; returns the executor."""
    torch.set_num_threads(threads)
    reference = copy.deepcopy(model)
    options = options or options_of(fusion, threads)
    executor = abele.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        found = executor(*batch)
        optimizer.zero_grad()
        parts = [reference(*part) for part in zip(*(tensor.chunk(2) for tensor in batch), strict=True)]
        for _, loss in parts:
            (loss / 2).backward()
        optimizer.step()
        assert same_bits(found[0], torch.cat([out.detach() for out, _ in parts]))
        assert same_bits(found[1].flatten(), torch.stack([loss.detach() for _, loss in parts]))
        for name, value in executor.state_dict().items():
            assert same_bits(value, reference.state_dict()[name]), name
    return executor


def text_of(executor):
    text = executor._executable.session.executableText()
    executor.destroy()
    return text


@pytest.fixture(autouse=True)
def seeded():
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    yield
    torch.set_num_threads(threads)


def weighted(classes, reduction, ignored):
    """With weights of classes."""
    weights = torch.linspace(0.1, 2, classes)
    return lambda x, t: torch.ops.aten.nll_loss(F.log_softmax(x, 1), t, weights, reduction, ignored)


LOSSES = {
    "mean": lambda classes: F.cross_entropy,
    "sum": lambda classes: lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    "none": lambda classes: lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "ignored": lambda classes: lambda x, t: F.cross_entropy(x, t, ignore_index=1),
    "weights": lambda classes: weighted(classes, reduction=1, ignored=-100),
    "weights of a sum": lambda classes: weighted(classes, reduction=2, ignored=0),
    "nll": lambda classes: lambda x, t: F.nll_loss(F.log_softmax(x, -1), t),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("rows", "classes"), [(1, 3), (7, 10), (300, 17), (40, 3000), (3, 40000)])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_have_eagers_bits(loss, rows, classes, threads):
    if rows * classes > 50000 and loss not in ("mean", "weights", "none"):
        pytest.skip("large tiles: three losses are enough")
    model = Classifier(classes, LOSSES[loss](classes))
    batch = torch.randn(2 * rows, 8), torch.randint(classes, (2 * rows,))
    text = text_of(train(model, batch, threads=threads))
    assert BACKWARD in text
    assert FORWARD in text
    assert "aten::nll_loss_backward" not in text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_element_types(dtype):
    model = Classifier(50, F.cross_entropy).to(dtype)
    text = text_of(train(model, (torch.randn(60, 8, dtype=dtype), torch.randint(50, (60,)))))
    assert BACKWARD in text
    assert FORWARD in text


def test_sequences_of_rows():
    model = Classifier(30, F.cross_entropy)
    text = text_of(train(model, (torch.randn(4, 11, 8), torch.randint(30, (4, 11)))))
    assert BACKWARD in text
    assert FORWARD in text


def test_odd_numbers():
    """Infinite logits, rows that are masked, rows that are left out."""
    x = torch.randn(12, 8)
    x[3], x[5, 2] = float("inf"), float("nan")
    masked = Classifier(9, lambda logits, t: F.cross_entropy(logits.index_fill(1, torch.tensor([2]), -torch.inf), t))
    assert BACKWARD in text_of(train(masked, (x, torch.randint(9, (12,)))))
    all_ignored = Classifier(9, F.cross_entropy)
    assert BACKWARD in text_of(train(all_ignored, (torch.randn(12, 8), torch.full((12,), -100))))


READ_AGAIN = {
    "probabilities": lambda logits: F.softmax(logits, -1),
    "squares, which backward reads": lambda logits: logits.pow(2),
}


@pytest.mark.parametrize("also", READ_AGAIN)
def test_logits_that_are_read_again_stay(also):
    model = Classifier(9, F.cross_entropy, READ_AGAIN[also])
    assert BACKWARD in text_of(train(model, (torch.randn(12, 8), torch.randint(9, (12,)))))


def test_logits_that_another_loss_reads():
    model = Classifier(9, lambda x, t: F.cross_entropy(x, t) + x.pow(2).mean() + F.cross_entropy(x * 2, t))
    text = text_of(train(model, (torch.randn(12, 8), torch.randint(9, (12,)))))
    assert text.count(BACKWARD) == 2


def test_smoothed_labels_stay_apart():
    model = Classifier(9, lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1))
    train(model, (torch.randn(12, 8), torch.randint(9, (12,)))).destroy()


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
@pytest.mark.parametrize("recompute", [False, True])
def test_stages_and_values_made_again(schedule, recompute):
    model = Deep(9, F.cross_entropy)
    poptorch.BeginBlock(model.first, "0")
    poptorch.BeginBlock(model.layer, "1")
    options = options_of("exact", 1)
    stages = [poptorch.Stage("0").ipu(0), poptorch.Stage("1").ipu(1)]
    options.setExecutionStrategy(poptorch.PipelinedExecution(*stages).schedule(schedule).recompute(recompute))
    assert BACKWARD in text_of(train(model, (torch.randn(12, 8), torch.randint(9, (12,))), options=options))


def test_off_leaves_them_apart():
    model = Classifier(9, F.cross_entropy)
    text = text_of(train(model, (torch.randn(12, 8), torch.randint(9, (12,))), fusion="off"))
    assert "abele_op::" not in text


def test_inference():
    model = Classifier(9, F.cross_entropy).eval()
    batch = torch.randn(6, 8), torch.randint(9, (6,))
    executor = poptorch.inferenceModel(model)
    for found, expected in zip(executor(*batch), model(*batch), strict=True):
        assert torch.equal(found, expected.detach())
    assert FORWARD in text_of(executor)


def test_a_target_out_of_bounds_is_eagers_error():
    model = Classifier(9, F.cross_entropy)
    executor = abele.trainingModel(model, options_of("exact", 1), torch.optim.SGD(model.parameters(), lr=0.1))
    executor(torch.randn(12, 8), torch.randint(9, (12,)))
    with pytest.raises(abele.Error, match="Target 9 is out of bounds"):
        executor(torch.randn(12, 8), torch.full((12,), 9))


def test_the_logits_memory_is_all_that_a_loss_takes():
    rows, classes = 64, 4000
    peaks = {}
    for fusion in ("exact", "off"):
        model = Classifier(classes, F.cross_entropy, also=lambda logits: logits[:, 0])
        torch.set_num_threads(1)
        executor = abele.trainingModel(
            model, options_of(fusion, 1, accumulation=1), torch.optim.SGD(model.parameters(), lr=0.1)
        )
        executor(torch.randn(rows, 8), torch.randint(classes, (rows,)))
        devices = json.loads(executor._executable.session.memoryJson())["devices"]
        peaks[fusion] = sum(device["peak_bytes"] for device in devices)
        executor.destroy()
    logits = rows * classes * 4
    # Logits, log-probabilities, their gradient and that of the logits, of which three live at once, in place of one.
    assert 0 <= 2 * logits - (peaks["off"] - peaks["exact"]) < 1024  # small values, aligned


def test_gradients_are_right():
    """Against differences of the loss, in double precision."""
    torch.set_num_threads(1)
    model = Classifier(5, F.cross_entropy).double()
    x, target = torch.randn(6, 8, dtype=torch.float64), torch.randint(5, (6,))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    executor = abele.trainingModel(
        model, options_of("exact", 1, accumulation=1), torch.optim.SGD(model.parameters(), lr=1.0)
    )
    executor(x, target)
    moved = executor.state_dict()
    executor.destroy()
    for name, value in start.items():
        gradient = (value - moved[name]).flatten()
        for i in range(0, value.numel(), 7):
            losses = []
            for step in (1e-6, -1e-6):
                shifted = {key: tensor.clone() for key, tensor in start.items()}
                shifted[name].view(-1)[i] += step
                losses.append(torch.func.functional_call(model, shifted, (x, target))[1])
            assert abs((losses[0] - losses[1]).item() / 2e-6 - gradient[i].item()) < 1e-8
