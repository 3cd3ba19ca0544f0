"""State of modules, as eager PyTorch keeps it: buffers that the program writes between calls, that forward replaces and
that backward writes; tensors that neither module nor optimizer has."""

import copy
import typing

import abele
import poptorch
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

ROWS, WIDTH = 3, 4


def options(accumulation=1, strategy=None):
    opts = abele.Options()
    opts.Training.gradientAccumulation(accumulation)
    opts.outputMode(poptorch.OutputMode.All)
    if strategy is not None:
        opts.setExecutionStrategy(strategy)
    return opts


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(
    make,
    *,
    steps=4,
    accumulation=1,
    strategy=None,
    rows=lambda step: ROWS,
    between=lambda step, model: None,
    more=lambda opts: opts,
):
    """Trains one module by Abele and its copy in eager PyTorch: outputs, parameters and buffers must be the same."""
    torch.manual_seed(0)
    model = make()
    twin = copy.deepcopy(model)
    ours, theirs = optimizer_of(model), optimizer_of(twin)
    executor = abele.trainingModel(model, more(options(accumulation, strategy)), ours)
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        count = rows(step)
        x, y = (torch.randn(count * accumulation, WIDTH, generator=generator) for _ in range(2))
        theirs.zero_grad()
        expected = []
        for k in range(accumulation):
            part = slice(k * count, (k + 1) * count)
            z, loss = twin(x[part], y[part])
            (loss / accumulation).backward()
            expected.append(z.detach())
        theirs.step()
        assert torch.equal(executor(x, y)[0], torch.cat(expected)), f"step {step}"
        between(step, model)
        between(step, twin)
    executor.copyWeightsToHost()
    for (name, mine), yours in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, yours), name
        assert mine.stride() == yours.stride(), name
    return executor


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("state", torch.zeros(WIDTH))

    def forward(self, x, y):
        z = self.middle(self.fc(x))
        return z, F.mse_loss(z, y)

    def middle(self, x):
        return x * self.scale


# --- written between calls --------------------------------------------------------------------------------------------
def test_buffers_that_the_program_writes_between_calls():
    def warm(step, model):
        model.scale.fill_(step + 2.0)

    train(Net, between=warm)


class Observed(Net):
    """Writes one buffer and reads the other."""

    def middle(self, x):
        self.state.add_(x.detach().mean(0))
        return x * self.scale + self.state


def test_a_buffer_that_both_write():
    def halve(step, model):
        model.scale.mul_(0.5)
        model.state.mul_(0.5)

    train(Observed, between=halve, accumulation=3)


def test_written_buffers_of_an_inference_model():
    model = Observed().eval()
    twin = copy.deepcopy(model)
    executor = abele.inferenceModel(model)
    x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    for value in (2.0, 3.0):
        with torch.no_grad():
            assert torch.equal(executor(x, y)[0], twin(x, y)[0])
        for each in (model, twin):
            each.scale.fill_(value)
            each.state.zero_()


@pytest.mark.parametrize("replaces", [False, True])
def test_two_inference_models_of_one_module(replaces):
    """They take turns, also with several programs: each sees what the forward of the other wrote."""
    model = (Running if replaces else Observed)().eval()
    twin = copy.deepcopy(model)
    executors = [abele.inferenceModel(model, options()) for _ in range(2)]
    for step, rows in enumerate([ROWS, ROWS, ROWS, ROWS, ROWS + 1, ROWS, ROWS, ROWS + 1, ROWS]):
        x, y = torch.randn(rows, WIDTH), torch.randn(rows, WIDTH)
        with torch.no_grad():
            assert torch.equal(executors[step % 2](x, y)[0], twin(x, y)[0]), step
        assert torch.equal(model.state, twin.state), step
        for each in (model, twin) if step == 4 else ():
            each.fc.weight.data.mul_(0.5)


class Decaying(Net):
    """Writes a parameter."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def middle(self, x):
        with torch.no_grad():
            self.gain.mul_(0.9)
        return x * self.gain


@pytest.mark.parametrize("kind", [Observed, Decaying])
def test_training_sees_what_evaluation_writes(kind):
    model = kind()
    twin = copy.deepcopy(model)
    ours, theirs = optimizer_of(model), optimizer_of(twin)
    training, evaluation = abele.trainingModel(model, options(), ours), abele.inferenceModel(model, options())
    for step in range(6):
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        if step % 3 == 1:
            with torch.no_grad():
                assert torch.equal(evaluation(x, y)[0], twin(x, y)[0]), step
            continue
        theirs.zero_grad()
        expected, loss = twin(x, y)
        loss.backward()
        theirs.step()
        assert torch.equal(training(x, y)[0], expected.detach()), step
    training.copyWeightsToHost()
    for (name, mine), yours in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(mine, yours), name


def test_an_argument_that_lies_in_a_written_tensor_of_an_inference_model_is_refused():
    model = Decaying()
    executor = abele.inferenceModel(model, options())
    executor(torch.randn(1, WIDTH), torch.randn(1, WIDTH))
    with pytest.raises(abele.Error, match="E0708 .*forward writes into parameter gain"):
        executor(model.gain.detach().view(1, WIDTH), torch.randn(1, WIDTH))


def test_an_argument_that_lies_in_a_written_buffer_is_refused():
    model = Observed()
    executor = abele.trainingModel(model, options(), optimizer_of(model))
    executor(torch.randn(1, WIDTH), torch.randn(1, WIDTH))
    with pytest.raises(abele.Error, match="E0708 .*forward writes into buffer state"):
        executor(model.state.view(1, WIDTH), torch.randn(1, WIDTH))


# --- replaced by forward ----------------------------------------------------------------------------------------------
class Running(Net):
    """Reads the state before it replaces it; backward needs the old one."""

    def __init__(self):
        super().__init__()
        self.decay = nn.Parameter(torch.full((WIDTH,), 0.9))

    def middle(self, x):
        z = x + self.decay * self.state
        self.state = 0.9 * self.state + x.detach().mean(0)
        return z + self.state


class Reset(Net):
    """Begins again in each call, with the shape of the input."""

    def middle(self, x):
        self.state = torch.zeros_like(x)
        for _ in range(3):
            self.state = 0.9 * self.state + x
        return self.state


class Neuron(Net):
    """Keeps its membrane's potential, which has the input's shape from the first call on."""

    def middle(self, x):
        if self.state.shape != x.shape:
            self.state = torch.zeros_like(x)
        self.state = 0.9 * self.state.detach() + x
        spikes = (self.state > 0.3).float()
        self.state = self.state - spikes * 0.3
        return spikes + self.state


class Listening(Net):
    """A hook of backward writes the state, which has the input's shape from the first call on."""

    def middle(self, x):
        z = x * (1 + self.state.mean())
        self.state = x.detach() * 0.5

        def listen(gradient):
            self.state.add_(gradient.detach())

        z.register_hook(listen)
        return z


class Filled(Net):
    """A buffer that is None until the first call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("cache", None, persistent=False)

    def middle(self, x):
        self.cache = x.detach().sum(0) if self.cache is None else self.cache + x.detach().sum(0)
        return x + self.cache


class Turned(Net):
    """A view of the buffer itself replaces it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("square", torch.arange(float(WIDTH * WIDTH)).view(WIDTH, WIDTH))

    def middle(self, x):
        self.square = self.square.t()
        return x * self.scale + self.square[0]


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("make", [Running, Reset, Turned])
def test_buffers_that_forward_replaces(make, accumulation):
    train(make, accumulation=accumulation)


@pytest.mark.parametrize("make", [Reset, Neuron, Listening, Filled])
def test_replaced_buffers_of_other_shapes(make):
    train(make, rows=lambda step: 2 if step == 2 else ROWS, steps=5)


@pytest.mark.parametrize("make", [Running, Neuron])
def test_replaced_buffers_that_the_program_replaces_too(make):
    def reset(step, model):
        model.state = torch.full_like(model.state, 0.25)

    train(make, between=reset)


@pytest.mark.parametrize("make", [Running, Neuron])
def test_replaced_buffers_of_inference_models(make):
    model = make()
    twin = copy.deepcopy(model)
    executor = abele.inferenceModel(model)
    for _ in range(4):
        x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
        with torch.no_grad():
            assert torch.equal(executor(x, y)[0], twin(x, y)[0])
    assert torch.equal(executor.model.state, twin.state)


class Cut(Net):
    """State and what reads it in the second stage."""

    def forward(self, x, y):
        poptorch.Block.start("first", ipu_id=0)
        x = self.fc(x)
        poptorch.Block.start("second", ipu_id=1)
        self.state = 0.9 * self.state + x.detach().mean(0)
        z = x * self.state
        return z, F.mse_loss(z, y)


class CutAndTurned(Turned):
    """State and what reads it in the first stage."""

    def forward(self, x, y):
        poptorch.Block.start("first", ipu_id=0)
        z = self.middle(x)
        poptorch.Block.start("second", ipu_id=1)
        z = self.fc(z)
        return z, F.mse_loss(z, y)


class CutAndSwapped(Turned):
    """The first stage replaces a buffer, and the second swaps it with one that it has read."""

    def __init__(self):
        super().__init__()
        self.register_buffer("other", torch.eye(WIDTH))

    def forward(self, x, y):
        poptorch.Block.start("first", ipu_id=0)
        x = self.fc(x)
        self.square = self.square[[1, 0, 3, 2]]
        poptorch.Block.start("second", ipu_id=1)
        z = x @ self.other + self.square[0]
        self.other, self.square = self.square, self.other
        return z, F.mse_loss(z, y)


class Lagging(Net):
    """The first stage reads what it had in the last micro-batch: its input, and a row that the second stage keeps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(ROWS, WIDTH))

    def forward(self, x, y):
        poptorch.Block.start("first", ipu_id=0)
        h = self.fc(x) + self.last + self.state
        self.last = x
        poptorch.Block.start("second", ipu_id=1)
        self.state = h.detach()[0]
        z = self.middle(h)
        return z, F.mse_loss(z, y)


@pytest.mark.parametrize("make", [Cut, CutAndTurned, CutAndSwapped, Lagging])
def test_a_replaced_buffer_in_a_pipeline(make):
    train(make, accumulation=4)


class WrittenTwice(Net):
    """Two stages write one buffer, and backward reads what each saw."""

    def forward(self, x, y):
        poptorch.Block.start("first", ipu_id=0)
        x = self.fc(x)
        self.state.add_(x.detach().mean(0))
        x = x * (1 + self.state)
        poptorch.Block.start("second", ipu_id=1)
        self.state = self.state.mul_(0.5)[[1, 0, 3, 2]]
        z = x * (1 + self.state)
        return z, F.mse_loss(z, y)


def test_a_buffer_that_two_stages_write():
    train(WrittenTwice, accumulation=3, strategy=poptorch.ShardedExecution())


def test_a_shape_that_the_next_micro_batch_would_read_is_refused():
    model = Neuron()
    executor = abele.trainingModel(model, options(accumulation=2), optimizer_of(model))
    with pytest.raises(abele.Error, match=r"E0108 .*state.*another type") as raised:
        executor(torch.randn(4, WIDTH), torch.randn(4, WIDTH))
    assert "[4] becomes" in str(raised.value) and model.state.shape == (WIDTH,)


class Tied(Net):
    def __init__(self):
        super().__init__()
        self.other = nn.Module()
        self.other.register_buffer("same", self.state)

    def middle(self, x):
        self.state = self.state + 1
        return x + self.state + self.other.same


def test_a_replaced_buffer_with_two_names_is_refused():
    model = Tied()
    with pytest.raises(abele.Error, match="E0108 .*under other names"):
        abele.trainingModel(model, options(), optimizer_of(model))(torch.randn(2, WIDTH), torch.randn(2, WIDTH))


class Aliased(Net):
    """Forward reads a buffer after it writes another one, and gives both one memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("copy", torch.ones(WIDTH))

    def middle(self, x):
        before = self.copy
        self.state.add_(x.detach().mean(0))
        z = x * before
        self.copy = self.state
        return z


class Transposed(Net):
    """One operator reads a buffer and writes other elements of another one, and forward gives both one memory."""

    def __init__(self):
        super().__init__()
        self.register_buffer("square", torch.eye(WIDTH))
        self.register_buffer("copy", torch.ones(WIDTH, WIDTH))

    def middle(self, x):
        self.square.add_(self.copy.t())
        z = x @ self.square
        self.copy = self.square
        return z


class Follows(Net):
    """A buffer in the memory of a weight."""

    def middle(self, x):
        z = x + self.state
        self.state = self.fc.weight.detach()[0]
        return z


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (Aliased, "copy by the memory of state"),
        (Transposed, "copy by the memory of square"),
        (Follows, "state .*a parameter"),
    ],
)
def test_a_replaced_buffer_in_written_memory_is_refused(make, names):
    model = make()
    executor = abele.trainingModel(model, options(), optimizer_of(model))
    with pytest.raises(abele.Error, match=f"E0108 .*forward replaced {names}.*written in place"):
        executor(torch.randn(2, WIDTH), torch.randn(2, WIDTH))


class Kept(Net):
    """Forward gives two buffers one memory, and reads both before it writes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.ones(WIDTH))

    def middle(self, x):
        z = x + self.last + self.state
        self.state.mul_(0.9).add_(x.detach().mean(0))
        self.last = self.state
        return z


def test_two_names_of_memory_that_are_never_told_apart():
    train(Kept, accumulation=3)


@pytest.mark.parametrize("make", [Running, Reset])
def test_poptorch_refuses_replaced_buffers(make):
    model = make()
    with pytest.raises(poptorch.Error, match="E0108 .*forward replaced state"):
        poptorch.trainingModel(model, optimizer=optimizer_of(model))(torch.randn(2, WIDTH), torch.randn(2, WIDTH))


# --- written while forward runs again ---------------------------------------------------------------------------------
class Normalised(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def middle(self, x):
        return checkpoint(self.norm, x, use_reentrant=False)


class Listened(Net):
    """A hook of backward writes what forward reads."""

    def middle(self, x):
        z = x * (1 + self.state)

        def listen(gradient):
            self.state.add_(gradient.detach().abs().sum(0))

        z.register_hook(listen)
        return z


class Checkpointed(Net):
    """Runs again in backward, where it reads the new state."""

    def middle(self, x):
        self.state = 0.5 * self.state + x.detach().mean(0)
        return checkpoint(lambda z: torch.tanh(z) * self.state + z, x, use_reentrant=False)


class ListenedAgain(Net):
    """A hook of backward writes what replaced a buffer."""

    def middle(self, x):
        z = x * (1 + self.state)
        self.state = 0.5 * self.state + x.detach().mean(0)

        def listen(gradient):
            self.state.add_(gradient.detach().abs().sum(0))

        z.register_hook(listen)
        return z


STRATEGIES = {
    "one stage": lambda: None,
    "1f1b": lambda: poptorch.PipelinedExecution().schedule("1f1b"),
    "sharded": poptorch.ShardedExecution,
}


@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("make", [Normalised, Listened, Checkpointed, ListenedAgain])
def test_buffers_that_backward_writes(make, strategy, accumulation):
    train(make, accumulation=accumulation, strategy=STRATEGIES[strategy]())


def test_what_other_micro_batches_would_see_is_refused():
    model = Normalised()
    strategy = poptorch.PipelinedExecution().schedule("gpipe")
    with pytest.raises(abele.Error, match="E0403 .*running_mean"):
        abele.trainingModel(model, options(2, strategy), optimizer_of(model))(
            torch.randn(4, WIDTH), torch.randn(4, WIDTH)
        )


# --- tensors of neither module nor optimizer --------------------------------------------------------------------------
class Constants(typing.NamedTuple):
    leak: torch.Tensor


class Learned(Net):
    def __init__(self):
        super().__init__()
        self.constants = Constants(nn.Parameter(torch.tensor(0.5)))

    def middle(self, x):
        return x * self.constants.leak


def test_a_tensor_that_requires_a_gradient_and_is_no_parameter_is_computed_with(capfd):
    train(Learned)
    assert "constants[0]" in capfd.readouterr().err


def test_parameters_that_overlap_in_part_are_refused():
    memory = torch.randn(3 * WIDTH)
    model = Net()
    model.left, model.right = nn.Parameter(memory[: 2 * WIDTH]), nn.Parameter(memory[WIDTH:])
    model.middle = lambda x: x + model.left.view(2, WIDTH)[0] * model.right.view(2, WIDTH)[1]
    with pytest.raises(abele.Error, match="E0105 .*part of its memory"):
        abele.trainingModel(model, options(), optimizer_of(model))(torch.randn(2, WIDTH), torch.randn(2, WIDTH))


class CheckpointedState(Net):
    """Replaces its state in a part of forward that runs again in backward."""

    def middle(self, x):
        def part(z):
            self.state = 0.5 * self.state + z.detach().mean(0)
            return z * self.state

        return checkpoint(part, x, use_reentrant=False)


def test_a_buffer_that_backward_replaces_again_is_refused():
    model = CheckpointedState()
    with pytest.raises(abele.Error, match="E0108 .*forward replaced state, and again when backward"):
        abele.trainingModel(model, options(), optimizer_of(model))(torch.randn(2, WIDTH), torch.randn(2, WIDTH))
    assert torch.equal(model.state, torch.zeros(WIDTH))
