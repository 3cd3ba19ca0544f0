"""environment.md section 11: recurrent, bilinear and attention layers, PReLU and linear algebra, of several or narrow
types."""

import copy

import poptorch
import pytest
import torch

spec = pytest.mark.spec
nn, HALF, FLOAT = torch.nn, torch.float16, torch.float32


class Layer(nn.Module):
    """The first result of a layer and a loss. casts: parameters in the input's type first."""

    def __init__(self, layer, casts):
        super().__init__()
        self.layer = layer
        self.casts = casts

    def forward(self, *inputs):
        layer = self.layer
        if self.casts:
            dtype = inputs[0].dtype
            cast = {name: value.to(dtype) for name, value in layer.named_parameters()}
            y = torch.func.functional_call(layer, cast, inputs)
        else:
            y = layer(*inputs)
        y = y[0] if isinstance(y, tuple) else y
        return y, poptorch.identity_loss(y.float().square(), reduction="mean")


# Name -> the layer, and the shapes of its inputs.
LAYERS = {
    "bilinear": (lambda: nn.Bilinear(4, 3, 5), [(2, 4), (2, 3)]),
    "RNN": (lambda: nn.RNN(4, 3, batch_first=True), [(2, 5, 4)]),
    "RNN of ReLU": (lambda: nn.RNN(4, 3, nonlinearity="relu"), [(5, 2, 4)]),
    "LSTM": (lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True), [(5, 2, 4)]),
    "GRU": (lambda: nn.GRU(4, 3, batch_first=True), [(2, 5, 4)]),
    "LSTM cell": (lambda: nn.LSTMCell(4, 3), [(2, 4)]),
    "GRU cell": (lambda: nn.GRUCell(4, 3), [(2, 4)]),
}


@spec("environment/11/mixed_operands")
@pytest.mark.parametrize(("inputs", "parameters"), [(HALF, FLOAT), (FLOAT, HALF)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_computes_in_the_type_of_its_input(one_thread, name, inputs, parameters):
    torch.manual_seed(3)
    make, shapes = LAYERS[name]
    layer = make().to(parameters)
    given = [torch.randn(shape).to(inputs) for shape in shapes]
    ours, theirs = Layer(copy.deepcopy(layer), False), Layer(copy.deepcopy(layer), True)
    executor = poptorch.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(3):
        _, loss = executor(*given)
        optimizer.zero_grad()
        expected = theirs(*given)[1]
        expected.backward()
        optimizer.step()
        assert torch.equal(loss, expected)
    executor.copyWeightsToHost()
    for mine, value in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert mine.dtype == parameters and torch.equal(mine, value)
    y = poptorch.inferenceModel(copy.deepcopy(ours).eval())(*given)[0]
    with torch.no_grad():
        assert y.dtype == inputs and torch.equal(y, theirs.eval()(*given)[0])


@spec("environment/11/mixed_operands")
@pytest.mark.parametrize(("inputs", "parameters"), [(HALF, FLOAT), (FLOAT, HALF)])
def test_encoder_layers_predict_in_the_type_of_their_input(one_thread, inputs, parameters):
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().to(parameters)
    x = torch.randn(2, 5, 8).to(inputs)
    expected = copy.deepcopy(layer).to(inputs)
    with torch.no_grad():
        assert torch.equal(poptorch.inferenceModel(layer)(x), expected(x))


@spec("environment/11/mixed_operands")
@pytest.mark.parametrize(("inputs", "parameters"), [(HALF, FLOAT), (FLOAT, HALF)])
def test_a_prelu_of_two_types_has_the_wider_one(inputs, parameters):
    torch.manual_seed(3)
    layer, x = nn.PReLU(3).to(parameters), torch.randn(2, 3, 4).to(inputs)
    expected = torch.prelu(x.float(), layer.weight.float())
    y = poptorch.inferenceModel(copy.deepcopy(layer))(x)
    assert y.dtype == FLOAT and torch.equal(y, expected)


@spec("environment/11/mixed_operands")
def test_products_of_lists_have_the_widest_type():
    class Products(nn.Module):
        def forward(self, a, b):
            return torch.linalg.multi_dot([a, b, a]), torch.chain_matmul(a, b)

    a, b = torch.randn(3, 4), torch.randn(4, 3).half()
    for mine, value in zip(poptorch.inferenceModel(Products())(a, b), Products()(a, b.float()), strict=True):
        assert mine.dtype == FLOAT and torch.equal(mine, value)


ALGEBRA = {
    "inverse": lambda a: torch.linalg.inv(a),
    "method": lambda a: a.inverse() + a.det(),
    "determinants": lambda a: torch.linalg.det(a) + torch.slogdet(a).logabsdet,
    "svd": lambda a: torch.linalg.svd(a).S + torch.linalg.svdvals(a),
    "qr": lambda a: torch.linalg.qr(a).R,
    "symmetric": lambda a: torch.linalg.eigvalsh(a + a.mT),
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT + 4 * torch.eye(4, dtype=a.dtype)),
    "solve": lambda a: torch.linalg.solve(a, a[:, :2]),
    "quantile": lambda a: torch.quantile(a, 0.3, dim=1) + a.quantile(torch.tensor(0.5)),
}


@spec("environment/11/model_in_half")
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
@pytest.mark.parametrize("name", ALGEBRA)
def test_linear_algebra_computes_in_float32(one_thread, name, dtype):
    class Model(nn.Module):
        def __init__(self, casts):
            super().__init__()
            torch.manual_seed(3)
            self.weight = nn.Parameter((torch.eye(4) + 0.2 * torch.randn(4, 4)).to(dtype))
            self.casts = casts

        def forward(self, x):
            a = self.weight * x
            y = apart(ALGEBRA[name], a) if self.casts else ALGEBRA[name](a)
            return y, poptorch.identity_loss(y.sum(), reduction="none")

    ours, theirs, x = Model(False), Model(True), torch.rand(4, 4).to(dtype) + 0.5
    executor = poptorch.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.125))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.125)
    for _ in range(2):
        y, loss = executor(x)
        optimizer.zero_grad()
        expected, expected_loss = theirs(x)
        expected_loss.backward()
        optimizer.step()
        assert y.dtype == dtype and torch.equal(y, expected) and torch.equal(loss, expected_loss)
    assert torch.equal(ours.weight, theirs.weight)


def apart(function, a):
    """Eager's function, each call of linear algebra between a cast to float32 and one back."""
    with _Casts():
        return function(a)


class _Casts(torch.overrides.TorchFunctionMode):
    names = set("inv inverse det slogdet svd svdvals qr eigvalsh cholesky solve quantile".split())

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = func.__name__.removeprefix("linalg_")
        if name not in self.names:
            return func(*args, **(kwargs or {}))
        dtype = args[0].dtype
        result = func(*(each.float() if isinstance(each, torch.Tensor) else each for each in args), **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            return result.to(dtype)
        return type(result)([each.to(dtype) for each in result])
