"""environment.md section 11: layers whose parameters and inputs have different floating types."""

import copy

import poptorch
import pytest
import torch

spec = pytest.mark.spec


class Widened(torch.nn.Module):
    """What a layer computes when all of it is widened to float32 first."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        wide = {name: parameter.float() for name, parameter in self.layer.named_parameters()}
        return torch.func.functional_call(self.layer, wide, (x.float(),))


LAYERS = {
    "linear": (lambda: torch.nn.Linear(6, 4), (3, 6)),
    "linear without bias": (lambda: torch.nn.Linear(6, 4, bias=False), (3, 6)),
    "linear of 3 dimensions": (lambda: torch.nn.Linear(6, 4), (3, 5, 6)),
    "conv1d": (lambda: torch.nn.Conv1d(6, 4, 3), (3, 6, 8)),
    "conv2d": (lambda: torch.nn.Conv2d(6, 4, 3, padding=1, groups=2), (3, 6, 8, 8)),
    "transposed conv": (lambda: torch.nn.ConvTranspose2d(6, 4, 3), (3, 6, 5, 5)),
}
NORMS = {
    "layer norm": (lambda: torch.nn.LayerNorm(6), (3, 6)),
    "group norm": (lambda: torch.nn.GroupNorm(2, 6), (3, 6, 4)),
}
HALF = torch.float16
CASES = [
    pytest.param(make, shape, inputs, parameters, id=f"{name}, {inputs} inputs, {parameters} parameters")
    for table, directions in (
        (LAYERS, [(HALF, torch.float32), (torch.float32, HALF), (torch.bfloat16, torch.float32)]),
        (NORMS, [(torch.float32, HALF)]),
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


@spec("environment/11/float32_parameters")
@pytest.mark.parametrize(("make", "shape", "inputs", "parameters"), CASES)
def test_a_layer_of_one_type_computes_inputs_of_another_in_float32(make, shape, inputs, parameters):
    torch.manual_seed(3)
    layer, x = make().to(parameters), torch.randn(shape).to(inputs)
    expected = Widened(copy.deepcopy(layer))(x)
    result = poptorch.inferenceModel(copy.deepcopy(layer))(x)
    assert result.dtype == torch.float32 and torch.equal(result, expected)


@spec("environment/11/float32_parameters")
@pytest.mark.parametrize(("make", "shape", "inputs", "parameters"), CASES)
def test_such_a_layer_trains_as_its_widened_form(make, shape, inputs, parameters):
    torch.manual_seed(3)
    layer, x = make().to(parameters), torch.randn(shape).to(inputs)
    ours, theirs = WithLoss(copy.deepcopy(layer)), WithLoss(Widened(copy.deepcopy(layer)))
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


@spec("environment/11/float32_parameters")
def test_products_of_two_types():
    class Products(torch.nn.Module):
        def forward(self, x, w):
            attention = torch.nn.functional.scaled_dot_product_attention(x, x, value=w.t()[:3, :4].contiguous())
            return attention, x @ w, torch.bmm(x[None], w[None]), torch.einsum("ab,bc->ac", x, w), torch.mv(x, w[:, 0])

    x, w = torch.randn(3, 4, dtype=HALF), torch.randn(4, 5)
    for mine, value in zip(poptorch.inferenceModel(Products())(x, w), Products()(x.float(), w), strict=True):
        assert torch.equal(mine, value)
