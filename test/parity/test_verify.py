"""abele.verify: equal models are called equal, and the first operator that differs is named."""

import threading

import abele
import numpy
import poptorch
import pytest
import torch
import torch.utils.checkpoint
from against_eager import Odd

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, WIDTH, ACCUMULATION = 2, 4, 3
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "poptorch adamw": lambda parameters: poptorch.optim.AdamW(parameters, lr=0.01),
    "poptorch sgd": lambda parameters: poptorch.optim.SGD(parameters, lr=0.01, momentum=0.5, loss_scaling=8.0),
}


class Net(torch.nn.Module):
    """Two stages. middle: what is done between them."""

    def __init__(self, middle=None):
        super().__init__()
        self.first = poptorch.BeginBlock(torch.nn.Linear(WIDTH, WIDTH), "first", ipu_id=0)
        self.norm = torch.nn.BatchNorm1d(WIDTH)
        self.second = poptorch.BeginBlock(torch.nn.Linear(WIDTH, WIDTH), "second", ipu_id=1)
        self.dropout = torch.nn.Dropout(0.5)
        self.middle = middle
        self.calls = 0

    def forward(self, x, target=None):
        self.calls += 1
        x = self.second(torch.relu(self.norm(self.first(x))))
        if self.middle is not None:
            x = self.middle(self, x)
        x = self.dropout(x)
        return x if target is None else (x, torch.nn.functional.mse_loss(x, target))


def made(middle=None):
    torch.manual_seed(0)
    return Net(middle)


def line_of(function, offset):
    """The line, so many below the head of a function, as messages name it."""
    return f"test_verify.py:{function.__code__.co_firstlineno + offset}"


def training(iterations=1, **settings):
    options = abele.Options().deviceIterations(iterations).randomSeed(3)
    options.Training.gradientAccumulation(ACCUMULATION)
    return options


def batches(count=2, iterations=1):
    torch.manual_seed(1)
    rows = ROWS * ACCUMULATION * iterations
    return [(torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)) for _ in range(count)]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_equal_training(name):
    net = made()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    versions = [tensor._version for tensor in net.parameters()]
    given, options = batches(2, 2), training(2)  # both seed torch
    random = torch.get_rng_state()
    report = abele.verify(net, *given, options=options, optimizer=OPTIMIZERS[name](net.parameters()))
    assert report.equal and bool(report) and report.difference is None and report.notes == []
    assert report.batches == 2 and report.micro_batches == 2 * 2 * ACCUMULATION and report.values > 400
    assert str(report).startswith("equal, bit for bit")
    assert type(net) is Net and torch.equal(torch.get_rng_state(), random)
    for key, value in net.state_dict().items():
        assert torch.equal(value, before[key]), key
    assert [tensor._version for tensor in net.parameters()] == versions
    assert all(tensor.grad is None for tensor in net.parameters())


def test_an_equal_inference():
    report = abele.verify(made().eval(), *batches(), options=abele.Options().deviceIterations(3))
    assert report.equal and report.micro_batches == 6


def test_an_executor_goes_on_as_if_nothing_had_been_verified():
    losses = []
    for verifies in (False, True):
        net = made()
        options = training()
        step = poptorch.trainingModel(net, options, torch.optim.AdamW(net.parameters(), lr=0.01))
        given = batches(3)
        losses.append([step(*given[0])[1]])
        if verifies:
            assert abele.verify(step, *given)
            assert abele.verify(net, given[1])  # the wrapped module stands for its executor
        losses[-1] += [step(*batch)[1] for batch in given[1:]]
        step.destroy()
    assert all(torch.equal(a, b) for a, b in zip(*losses, strict=True))


@pytest.mark.parametrize("trains", [False, True])
def test_buffers_that_forward_replaces(trains):
    """Backward reads the new one, because the middle runs again there."""

    def middle(net, x):
        net.state = 0.5 * net.state + x.detach().mean(0)
        return torch.utils.checkpoint.checkpoint(lambda z: torch.tanh(z) * net.state, x, use_reentrant=False)

    net = made(middle)
    net.register_buffer("state", torch.ones(WIDTH))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1) if trains else None
    options = training() if trains else abele.Options().deviceIterations(ACCUMULATION)
    before = net.state
    assert abele.verify(net.train(trains), *batches(), options=options, optimizer=optimizer)
    assert net.state is before and torch.equal(before, torch.ones(WIDTH))


def test_named_arguments():
    x, target = batches()[0]
    options = training()
    net = made()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    assert abele.verify(net, {"target": target, "x": x}, options=options, optimizer=optimizer)


_library = torch.library.Library("abele_verify", "DEF")
_library.define("of_the_thread(Tensor x) -> Tensor")
_library.impl("of_the_thread", lambda x: x * (2 if threading.current_thread() is threading.main_thread() else 3), "CPU")


def through_the_thread(net, x):
    return torch.ops.abele_verify.of_the_thread(x)


def test_a_kernel_that_differs():
    report = abele.verify(made(through_the_thread).eval(), *batches(), options=abele.Options().deviceIterations(3))
    difference = report.difference
    assert not report and difference.kind == "value" and difference.operator == "abele_verify::of_the_thread"
    assert (difference.line, difference.stage) == (line_of(through_the_thread, 1), 1)
    assert (difference.batch, difference.micro_batch, difference.element) == (0, 0, (0, 0))
    assert difference.elements == difference.of == ROWS * WIDTH and difference.type == f"f32[{ROWS},{WIDTH}]"
    assert float(difference.found) / 3 == pytest.approx(float(difference.expected) / 2)
    for text in ("abele_verify::of_the_thread", line_of(through_the_thread, 1), difference.found, difference.expected):
        assert text in str(report)


def scaled_by_the_call(net, x):
    scale = torch.from_numpy(numpy.full(WIDTH, float(net.calls), dtype=numpy.float32))
    x = x + 0
    return x * scale


def test_a_constant_that_differs():
    net = made(scaled_by_the_call).eval()
    report = abele.verify(net, *batches(), options=abele.Options().deviceIterations(3))
    difference = report.difference
    assert difference.kind == "constant" and difference.operator == "aten::mul.Tensor"
    assert difference.direction == "forward"
    assert (difference.line, difference.stage) == (line_of(scaled_by_the_call, 3), 1)
    assert float(difference.found) < float(difference.expected) and difference.of == WIDTH
    assert "constant" in difference.reason


def times_the_calls(net, x):
    return x * float(net.calls)


def test_a_number_that_differs():
    difference = abele.verify(made(times_the_calls).eval(), batches()[0]).difference
    assert difference.kind == "program" and difference.line == line_of(times_the_calls, 1)
    assert "1" in difference.found and "2" in difference.expected


_memory = numpy.zeros(1, dtype=numpy.float32)


def read_by_another_thread(net, x):
    found = []
    reader = threading.Thread(target=lambda: found.append(float(_memory[0])))
    _memory[0] += 1
    reader.start()
    reader.join()
    return x + found[0]


def test_a_number_that_another_thread_reads():
    difference = abele.verify(made(read_by_another_thread).eval(), batches()[0]).difference
    assert difference.kind == "program" and difference.line == line_of(read_by_another_thread, 6)


def otherwise_when_captured(net, x):
    x = x * 2
    return x + (1 if abele.isCapturing() else 3)


def test_eager_that_differs_while_it_is_captured():
    difference = abele.verify(made(otherwise_when_captured).eval(), batches()[0]).difference
    assert difference.kind == "capture" and difference.operator == "aten::add.Tensor"
    assert (difference.line, difference.stage) == (line_of(otherwise_when_captured, 2), 1)


def test_a_weight_that_differs():
    net = made()
    report = abele.verify(net, *batches(), options=training(), optimizer=Odd(net.parameters(), lr=0.1))
    assert report.difference.kind == "weight" and report.difference.operator == "second.bias"
    assert (report.difference.stage, report.difference.batch) == (1, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: poptorch.optim.LAMB(parameters, lr=0.01),
        lambda parameters: poptorch.optim.AdamW(parameters, lr=0.01, max_grad_norm=0.1),
    ],
)
def test_an_optimizer_that_torch_has_not(make):
    net = made()
    report = abele.verify(net, *batches(), options=training(), optimizer=make(net.parameters()))
    assert report.equal and "weights after the update" in report.notes[0] and report.notes[0] in str(report)
    with pytest.raises(abele.Error, match="E0702"):  # eager would not know the weights of the second update
        abele.verify(net, *batches(1, 2), options=training(2), optimizer=make(net.parameters()))


def test_one_micro_batch_proves_no_constants():
    report = abele.verify(made().eval(), torch.randn(ROWS, WIDTH))
    assert report.equal and "none to compare" in report.notes[0]


def test_gradients_that_are_there_stay():
    net = made()
    for tensor in net.parameters():
        tensor.grad = torch.ones_like(tensor)
    assert abele.verify(net, batches()[0], options=training(), optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    assert all(torch.equal(tensor.grad, torch.ones_like(tensor)) for tensor in net.parameters())


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("E0702", lambda options: options.replicationFactor(2)),
        ("E0702", lambda options: options.Precision.enableStochasticRounding(True)),
    ],
)
def test_what_eager_has_not(code, change):
    options = training()
    change(options)
    net = made()
    with pytest.raises(abele.Error, match=code):
        abele.verify(net, *batches(1, 2), options=options, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    assert type(net) is Net


def test_wrong_calls():
    net = made()
    step = abele.inferenceModel(net)
    with pytest.raises(abele.Error, match="E0708"):
        abele.verify(step)
    with pytest.raises(abele.Error, match="E0708"):
        abele.verify(step, torch.randn(ROWS, WIDTH), options=abele.Options())


def test_schedules_and_recomputation_are_the_same():
    net = made()
    options = training()
    options.setExecutionStrategy(
        abele.PipelinedExecution(abele.AutoStage.AutoSplit).devices(2).schedule("zero-bubble").recompute()
    )
    assert abele.verify(net, *batches(), options=options, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
