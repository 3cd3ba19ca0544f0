"""torch.compile(backend="abele"): results, gradients, buffers and random numbers of eager PyTorch, bit for bit."""

import copy
import os
import subprocess
import sys

import abele
import abele.dynamo
import pytest
import torch
from torch import nn

F = nn.functional
pytestmark = pytest.mark.own_process  # torch.compile switches the checks of torch.distributions off for good


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.second(F.gelu(self.first(x)))


class Convolutions(nn.Module):
    """Buffers that forward writes, and random numbers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()
        )
        self.head = nn.Linear(8 * 16, 3)

    def forward(self, x):
        return self.head(self.body(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, tokens):
        x = self.embed(tokens)
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x @ self.embed.weight.T


def batches(name):
    torch.manual_seed(5)
    for _ in range(3):
        if name is Perceptron:
            yield torch.randn(6, 8), torch.randint(3, (6,))
        elif name is Convolutions:
            yield torch.randn(6, 3, 8, 8), torch.randint(3, (6,))
        else:
            yield torch.randint(50, (4, 7)), torch.randint(50, (4, 7))


def loss_of(output, target):
    return F.cross_entropy(output.flatten(0, -2), target.flatten())


@pytest.mark.parametrize("kind", [Perceptron, Convolutions, Attention])
def test_training_is_that_of_eager(kind):
    torch.manual_seed(0)
    ours = kind()
    theirs = copy.deepcopy(ours)
    ran = []
    for model, call in ((ours, torch.compile(ours, backend="abele", fullgraph=True)), (theirs, theirs)):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.manual_seed(1)
        numbers = torch.get_rng_state()
        losses = []
        for x, target in list(batches(kind)):
            torch.set_rng_state(numbers)
            optimizer.zero_grad()
            loss = loss_of(call(x), target)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            numbers = torch.get_rng_state()
        ran.append((losses, numbers, [p.grad for p in model.parameters()], list(model.state_dict().values())))
    (losses, numbers, gradients, state), (their_losses, their_numbers, their_gradients, their_state) = ran
    assert losses == their_losses and losses[0] != losses[-1]
    assert torch.equal(numbers, their_numbers)
    for mine, eager in zip([*gradients, *state], [*their_gradients, *their_state], strict=True):
        assert torch.equal(mine, eager)


@pytest.mark.parametrize("kind", [Perceptron, Convolutions, Attention])
def test_inference_is_that_of_eager(kind):
    model = kind().eval()
    compiled = torch.compile(model, backend="abele", fullgraph=True)
    with torch.no_grad():
        for x, _ in batches(kind):
            assert torch.equal(compiled(x), model(x))
        for tensor in model.parameters():
            tensor.mul_(1.5)  # the program's own: seen by the next call
        assert torch.equal(compiled(x), model(x))


def test_it_runs_on_our_devices(monkeypatch):
    """Not only equal: each graph is a program of ours."""
    made = []
    real = abele.dynamo.inferenceModel
    monkeypatch.setattr(abele.dynamo, "inferenceModel", lambda *given: made.append(real(*given)) or made[-1])
    model = Perceptron()
    torch.compile(model, backend="abele")(torch.randn(6, 8)).sum().backward()
    forward, backward = made
    assert "gelu" in forward.graphText() and "gelu_backward" in backward.graphText()
    assert forward.report()["stages"] and backward.report()["stages"]


def test_shapes_may_change():
    model = Perceptron()
    compiled = torch.compile(model, backend="abele")
    for rows in (6, 3, 9, 6):
        x = torch.randn(rows, 8, requires_grad=True)
        ours = torch.autograd.grad(compiled(x).square().sum(), x)[0]
        assert torch.equal(ours, torch.autograd.grad(model(x).square().sum(), x)[0])


class ChannelsLast(nn.Module):
    """Kernels choose their way by strides, also those of backward."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3, stride=2))
        self.to(memory_format=torch.channels_last)

    def forward(self, x):
        return self.body(x)


class FrozenStatistics(ChannelsLast):
    """Saves tensors without elements for backward."""

    def train(self, mode=True):
        return super().train(False)


@pytest.mark.parametrize("kind", [ChannelsLast, FrozenStatistics])
def test_strides_are_those_of_eager(kind):
    torch.manual_seed(0)
    ours = kind().train()
    theirs = copy.deepcopy(ours)
    x = torch.randn(4, 3, 16, 16).contiguous(memory_format=torch.channels_last)
    results = torch.compile(ours, backend="abele", fullgraph=True)(x), theirs(x)
    for result in results:
        result.square().sum().backward()
    assert torch.equal(*results) and results[0].stride() == results[1].stride()
    for mine, eager in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine.grad, eager.grad)


def test_plain_functions_views_and_writes():
    def program(x, scale, out):
        out.add_(x * scale)
        return x[1:], (x * 3).t(), scale + 1, (x + 1)[:, :1].expand(4, 5), out

    compiled = torch.compile(program, backend="abele", fullgraph=True)
    x, scale = torch.randn(4, 3), torch.tensor(2.0)
    ours, theirs = torch.ones(4, 3), torch.ones(4, 3)
    results, expected = compiled(x, scale, ours), program(x, scale, theirs)
    for mine, eager in zip([*results, ours], [*expected, theirs], strict=True):
        assert torch.equal(mine, eager) and mine.stride() == eager.stride()
    assert results[0].untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert results[4] is ours


def two_gates(x):
    mean, deviation = torch.var_mean(x, 1, keepdim=True)
    return F.dropout(x - mean, 0.5) / deviation, F.dropout(x, 0.25)


def attends(x):
    heads = x.view(1, 2, 4, 16)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)


@pytest.mark.parametrize("program", [F.dropout, two_gates, attends, F.alpha_dropout], ids=lambda each: each.__name__)
def test_random_numbers_are_drawn_once(program):
    x = torch.randn(8, 16)
    seen = []
    for call in (program, torch.compile(program, backend="abele", fullgraph=True)):
        torch.manual_seed(3)
        seen.append([call(x), call(x), torch.rand(4)])
    for mine, eager in zip(*map(torch.utils._pytree.tree_leaves, seen), strict=True):
        assert torch.equal(mine, eager)


@pytest.mark.parametrize(
    ("name", "program"),
    [
        ("native_layer_norm", lambda x: F.layer_norm(x, (16,))),
        ("topk", lambda x: torch.topk(x, 3)[0] * 2),
        ("mode", lambda x: torch.mode(x)),
    ],
)
def test_an_operator_runs_once(name, program):
    compiled = torch.compile(program, backend="abele", fullgraph=True)
    x = torch.randn(8, 16)
    compiled(x)
    with torch.autograd.profiler.profile() as watched:  # the device's thread, and this one
        compiled(x)
    assert [event.name for event in watched.function_events].count(f"aten::{name}") == 1


def views(x):
    y = x * 2
    return y, y[0], y[1:].t(), y.view(-1)[::2], y.unbind(1)[1]


def parts(x):
    return (x + 1).split(1)


def a_complex_number(x):
    z = torch.complex(x, x + 1)
    return z, z.conj(), torch.view_as_real(z), z.imag, x[1:]


def written(x):
    y = x + 1
    row = y[0]
    row.add_(1)
    return y, row, y.detach(), x * 2


def memory(results):
    """Which results share memory."""
    seen = [result.untyped_storage().data_ptr() for result in results]
    return [seen.index(each) for each in seen]


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("program", [views, parts, a_complex_number, written], ids=lambda each: each.__name__)
def test_results_share_memory_as_those_of_eager(program, has_gradient):
    x = torch.randn(3, 4)
    compiled = torch.compile(program, backend="abele", fullgraph=True)
    ours, theirs = (call(x.clone().requires_grad_(has_gradient)) for call in (compiled, program))
    assert memory(ours) == memory(theirs)
    with torch.no_grad():
        for results in (ours, theirs):
            torch.view_as_real(results[0]).zero_() if results[0].is_complex() else results[0].zero_()
    for mine, eager in zip(ours, theirs, strict=True):
        assert torch.equal(mine, eager) and mine.stride() == eager.stride()
        assert (mine.is_conj(), mine.is_neg()) == (eager.is_conj(), eager.is_neg())


def test_a_break_in_the_graph():
    """Dynamo hands Python code that it cannot trace back to Python; the graphs around it are ours."""

    def program(x):
        x = (x * 2).cos()
        if x.sum().item() > 0:
            return x + 1
        return x.sin()

    compiled = torch.compile(program, backend="abele")
    for x in (torch.zeros(4), torch.full((4,), 1.2)):
        assert torch.equal(compiled(x), program(x))
    torch._dynamo.reset()  # which keeps what it compiled of a function
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        torch.compile(program, backend="abele", fullgraph=True)(torch.ones(4))


def test_what_cannot_be_captured_is_an_error_of_ours():
    compiled = torch.compile(lambda x: x.nonzero() + 1, backend="abele", fullgraph=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        with pytest.raises(abele.Error) as refused:
            compiled(torch.tensor([0.0, 1.0, 2.0]))
    assert refused.value.code in ("E0101", "E0106")


@pytest.mark.parametrize("settings", [{"mode": "max-autotune"}, {"options": {"threads": 2}}], ids=str)
def test_settings_are_refused(settings):
    with pytest.raises(Exception, match="E0702"):
        torch.compile(lambda x: x + 1, backend="abele", **settings)(torch.ones(2))


def test_the_name_is_known_without_an_import():
    """An entry point says it: the installed package's, or the one that `./dev setup` makes."""
    program = "import torch; print(torch.compile(lambda x: x * 2, backend='abele')(torch.ones(2)).tolist())"
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr
