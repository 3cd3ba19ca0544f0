"""environment.md section 11: layers whose parameters and inputs have different floating types."""

import copy

import poptorch
import pytest
import torch

spec = pytest.mark.spec


class Cast(torch.nn.Module):
    """A layer whose parameters and inputs are cast to one type first: that of the inputs where none is given."""

    def __init__(self, layer, dtype=None):
        super().__init__()
        self.layer = layer
        self.dtype = dtype

    def forward(self, x):
        x = x if self.dtype is None else x.to(self.dtype)
        cast = {name: parameter.to(x.dtype) for name, parameter in self.layer.named_parameters()}
        return torch.func.functional_call(self.layer, cast, (x,))


LAYERS = {
    "linear": (lambda: torch.nn.Linear(6, 4), (3, 6)),
    "linear without bias": (lambda: torch.nn.Linear(6, 4, bias=False), (3, 6)),
    "linear of 3 dimensions": (lambda: torch.nn.Linear(6, 4), (3, 5, 6)),
    "conv1d": (lambda: torch.nn.Conv1d(6, 4, 3), (3, 6, 8)),
    "conv2d": (lambda: torch.nn.Conv2d(6, 4, 3, padding=1, groups=2), (3, 6, 8, 8)),
    "conv3d of one image": (lambda: torch.nn.Conv3d(6, 4, 3), (6, 3, 4, 4)),
    "conv2d of reflected edges": (lambda: torch.nn.Conv2d(6, 4, 3, padding=1, padding_mode="reflect"), (3, 6, 5, 5)),
    "transposed conv": (lambda: torch.nn.ConvTranspose2d(6, 4, 3), (3, 6, 5, 5)),
    "transposed conv1d": (lambda: torch.nn.ConvTranspose1d(6, 4, 3, bias=False), (3, 6, 5)),
}
NORMS = {
    "layer norm": (lambda: torch.nn.LayerNorm(6), (3, 6)),
    "group norm": (lambda: torch.nn.GroupNorm(2, 6), (3, 6, 4)),
}
HALF = torch.float16
CASES = [
    pytest.param(make, shape, inputs, parameters, dtype, id=f"{name}, {inputs} inputs, {parameters} parameters")
    for table, directions, dtype in (
        (LAYERS, [(HALF, torch.float32), (torch.float32, HALF), (torch.bfloat16, torch.float32)], None),
        (NORMS, [(torch.float32, HALF)], torch.float32),
    )
    for name, (make, shape) in table.items()
    for inputs, parameters in directions
]


class WithLoss(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        y = self.layer(x)
        return y, poptorch.identity_loss(y.square(), reduction="mean")


MIXED = pytest.mark.parametrize(("make", "shape", "inputs", "parameters", "dtype"), CASES)


@spec("environment/11/mixed_operands")
@MIXED
def test_a_layer_gives_results_of_the_type_of_its_inputs(make, shape, inputs, parameters, dtype):
    torch.manual_seed(3)
    layer, x = make().to(parameters), torch.randn(shape).to(inputs)
    expected = Cast(copy.deepcopy(layer), dtype)(x)
    result = poptorch.inferenceModel(copy.deepcopy(layer))(x)
    assert result.dtype == inputs and torch.equal(result, expected)


@spec("environment/11/mixed_operands")
@MIXED
def test_such_a_layer_trains_as_with_casts(make, shape, inputs, parameters, dtype):
    torch.manual_seed(3)
    layer, x = make().to(parameters), torch.randn(shape).to(inputs)
    ours, theirs = WithLoss(copy.deepcopy(layer)), WithLoss(Cast(copy.deepcopy(layer), dtype))
    executor = poptorch.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(3):
        _, loss = executor(x)
        optimizer.zero_grad()
        expected = theirs(x)[1]
        expected.backward()
        optimizer.step()
        assert torch.equal(loss, expected)
    executor.copyWeightsToHost()
    for mine, value in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.dtype == parameters and torch.equal(mine, value)


class FromBytes(torch.nn.Module):
    """Images of 8-bit integers."""

    def __init__(self, casts_weights):
        super().__init__()
        self.conv, self.linear = torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(4, 2)
        self.casts_weights = casts_weights

    def forward(self, x):
        conv, linear = self.conv, self.linear
        if self.casts_weights:
            conv, linear = Cast(conv), Cast(linear)
        return linear(conv(x.half() / 255).mean((2, 3)))


@spec("environment/11/mixed_operands")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_layers_of_float32_take_integers_that_were_cast(dtype):
    torch.manual_seed(3)
    model, x = FromBytes(False), torch.randint(0, 100, (2, 3, 5, 5)).to(dtype)
    expected = FromBytes(True)
    expected.load_state_dict(model.state_dict())
    result = poptorch.inferenceModel(model)(x)
    assert result.dtype == HALF and torch.equal(result, expected(x))


@spec("environment/11/mixed_operands")
def test_autocast_chooses_the_type_where_it_is_on():
    class Autocast(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(6, 4)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.linear(x)

    model, x = Autocast(), torch.randn(3, 6)
    result = poptorch.inferenceModel(model)(x)
    assert result.dtype == torch.bfloat16 and torch.equal(result, model(x))


@spec("environment/11/mixed_operands")
def test_products_of_two_types():
    class Products(torch.nn.Module):
        def forward(self, x, w):
            attention = torch.nn.functional.scaled_dot_product_attention(x, x, value=w.t()[:3, :4].contiguous())
            return attention, x @ w, torch.bmm(x[None], w[None]), torch.einsum("ab,bc->ac", x, w), torch.mv(x, w[:, 0])

    x, w = torch.randn(3, 4, dtype=HALF), torch.randn(4, 5)
    for mine, value in zip(poptorch.inferenceModel(Products())(x, w), Products()(x.float(), w), strict=True):
        assert torch.equal(mine, value)


class NormOfHalves(torch.nn.Module):
    """float16 activations and weights, statistics of float32. widens: as eager has to do it."""

    def __init__(self, widens):
        super().__init__()
        self.conv = torch.nn.Conv1d(6, 4, 3)
        self.norm = torch.nn.BatchNorm1d(4)
        self.half()
        self.norm.running_mean = self.norm.running_mean.float()
        self.norm.running_var = self.norm.running_var.float()
        self.widens = widens

    def forward(self, x):
        norm, y = self.norm, self.conv(x)
        if self.widens:
            y = torch.nn.functional.batch_norm(
                y, norm.running_mean, norm.running_var, norm.weight.float(), norm.bias.float(), norm.training, 0.1
            )
        else:
            y = norm(y)
        return y, poptorch.identity_loss(y.float().square(), "mean")


@spec("environment/11/norm_statistics")
@pytest.mark.parametrize("training", [True, False])
def test_statistics_of_float32_in_a_model_of_float16(training):
    torch.manual_seed(2)
    model, reference = NormOfHalves(False), NormOfHalves(True)
    reference.load_state_dict(model.state_dict())
    model.norm.train(training)
    reference.norm.train(training)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.5)
    x = torch.randn(3, 6, 8).half()
    for _ in range(3):
        ours, expected = executor(x), reference(x)
        optimizer.zero_grad()
        expected[1].backward()
        optimizer.step()
        assert ours[0].dtype == torch.float16 and all(map(torch.equal, ours, expected))
    for name, value in model.state_dict().items():
        assert name == "norm.num_batches_tracked" or torch.equal(value, reference.state_dict()[name]), name
    inference = poptorch.inferenceModel(NormOfHalves(False).eval())
    assert inference(x)[0].dtype == torch.float16


class WiderNorm(torch.nn.Module):
    """A batch normalisation, by eager's operator, whose parameters and statistics are cast to the input's type."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        norm = self.norm
        statistics = [each.to(x.dtype, copy=True) for each in (norm.running_mean, norm.running_var)]
        weight, bias = norm.weight.to(x.dtype), norm.bias.to(x.dtype)
        norm.num_batches_tracked += self.training
        momentum = norm.momentum or 1 / norm.num_batches_tracked.item()
        y = torch.nn.functional.batch_norm(x, *statistics, weight, bias, self.training, momentum, norm.eps)
        with torch.no_grad():
            norm.running_mean.copy_(statistics[0])
            norm.running_var.copy_(statistics[1])
        return y


@spec("environment/11/mixed_operands")
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("statistics", [HALF, torch.float32])
def test_a_batch_norm_of_float16_takes_wider_inputs(statistics, momentum):
    torch.manual_seed(3)
    norm, x = torch.nn.BatchNorm2d(6, momentum=momentum).to(HALF), torch.randn(3, 6, 4, 4)
    norm.running_mean, norm.running_var = norm.running_mean.to(statistics), norm.running_var.to(statistics)
    ours, theirs = WithLoss(norm), WithLoss(WiderNorm(copy.deepcopy(norm)))
    executor = poptorch.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(3):
        _, loss = executor(x)
        optimizer.zero_grad()
        expected = theirs(x)[1]
        expected.backward()
        optimizer.step()
        assert torch.equal(loss, expected)
    for mine, value in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert mine.dtype == value.dtype and torch.equal(mine, value)
    ours.destroy()
    prediction = poptorch.inferenceModel(norm.eval())(x)
    assert torch.equal(prediction, WiderNorm(norm).eval()(x))


@spec("environment/11/mixed_operands")
def test_an_instance_norm_of_float16_takes_wider_inputs():
    torch.manual_seed(3)
    norm, x = torch.nn.InstanceNorm1d(6, affine=True).to(HALF), torch.randn(3, 6, 4)
    assert torch.equal(poptorch.inferenceModel(norm)(x), copy.deepcopy(norm).float()(x))
