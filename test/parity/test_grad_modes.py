"""Regions of forward where autograd is on or off: kernels that ask for the mode run in the one that eager has there."""

import copy

import poptorch
import pytest
import torch


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.frozen = torch.nn.LSTM(6, 5, 2)
        self.learning = torch.nn.LSTM(5, 4)

    def forward(self, x):
        with torch.no_grad():
            y = self.frozen(x)[0]
        z = self.learning(y)[0]
        return y, z, poptorch.identity_loss(z.square(), "mean")


class Slopes(torch.nn.Module):
    """Inference that asks for the slope of an LSTM at its input."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        before = self.layer(x)[0]
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = self.layer(x)[0]
            (slope,) = torch.autograd.grad(y.square().sum(), x)
        return before, y.detach(), slope


@pytest.fixture
def x():
    torch.manual_seed(5)
    return torch.randn(7, 3, 6)


def train_equally(model, reference, *x):
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    for _ in range(3):
        ours, expected = executor(*x), reference(*x)
        optimizer.zero_grad()
        expected[-1].backward()
        optimizer.step()
        assert all(map(torch.equal, ours, expected))
    assert all(map(torch.equal, model.state_dict().values(), reference.state_dict().values()))


def test_training_with_a_region_without_autograd(x):
    model = Layers()
    reference = copy.deepcopy(model)
    train_equally(model, reference, x)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
@pytest.mark.parametrize("keywords", [{}, {"num_layers": 2, "bidirectional": True}])
def test_inference_that_differentiates(x, kind, keywords):
    model = Slopes(kind(6, 4, **keywords))
    reference = copy.deepcopy(model)
    executor = poptorch.inferenceModel(model)
    for shift in range(2):
        with torch.no_grad():
            expected = reference(x + shift)
        assert all(map(torch.equal, executor(x + shift), expected))


class Directions(torch.nn.Module):
    """Forward-mode derivatives, which torch checks with tensors without memory."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(6, 2)
        self.register_buffer("direction", torch.linspace(-1, 1, 6))

    def forward(self, x):
        def energy(row):
            return self.layer(row).tanh().sum()

        first = torch.empty(3, 6, device="meta")  # a tensor to ask for shapes
        slope = torch.func.jvp(energy, (x[0],), (self.direction,))[1]
        curvature = torch.func.hessian(energy)(x[1])
        y = self.layer(x).reshape(-1, (first @ self.layer.weight.t().to("meta")).shape[1])
        return slope, curvature, poptorch.identity_loss(slope + curvature.sum() + y.square().mean(), "none")


@pytest.mark.parametrize("training", [True, False])
def test_forward_mode_derivatives(training):
    torch.manual_seed(5)
    model, x = Directions(), torch.randn(4, 6)
    reference = copy.deepcopy(model)
    if not training:
        expected = reference(x)
        assert all(map(torch.equal, poptorch.inferenceModel(model)(x), expected))
        return
    train_equally(model, reference, x)


class Reversible(torch.autograd.Function):
    """Keeps no activation: backward computes the layers again, and calls backward() on them."""

    @staticmethod
    def forward(ctx, x, first, second):
        ctx.layers = first, second
        a, b = x.chunk(2, -1)
        a = a + first(b)
        y = torch.cat([a, b + second(a)], -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, slope):
        first, second = ctx.layers
        (a, b), (slope_a, slope_b) = ctx.saved_tensors[0].chunk(2, -1), slope.chunk(2, -1)
        with torch.enable_grad():
            a = a.detach().requires_grad_()
            y = second(a)
        torch.autograd.backward(y, slope_b)
        slope_a = slope_a + a.grad
        with torch.enable_grad():
            b = (b - y).detach().requires_grad_()
            y = first(b)
        torch.autograd.backward(y, slope_a)
        return torch.cat([slope_a, slope_b + b.grad], -1), None, None


class Reverses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        y = Reversible.apply(x, *self.layers)
        return y, poptorch.identity_loss(y.square().mean() + self.layers[0].weight.sum(), "none")


def test_backward_inside_of_backward(x):
    model = Reverses()
    reference = copy.deepcopy(model)
    model.layers[0].weight.grad = torch.ones(3, 3)  # stays as it is
    train_equally(model, reference, x)
    assert torch.equal(model.layers[0].weight.grad, torch.ones(3, 3)) and model.layers[1].weight.grad is None
