"""The gradient of prod: eager chooses its formula by the number of zeros that it finds, and so does a program."""

import abele
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")


class Product(nn.Module):
    def __init__(self, product, dtype):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4, dtype=dtype))
        self.product = product

    def forward(self, x):
        result = self.product(self.weight * x)
        return abele.identity_loss(torch.view_as_real(result).sum() if result.is_complex() else result.sum(), "none")


PRODUCTS = {
    "last": lambda x: x.prod(-1) * 1.5,
    "first kept": lambda x: x.prod(0, keepdim=True) * 1.5,
    "all": lambda x: x.prod() * 1.5,
    "of one": lambda x: x[:1].prod(0) * 1.5,
    "transposed": lambda x: x.t().prod(1) * 1.5,
}
ZEROS = {"none": [], "one": [(1, 2)], "two in a row": [(1, 2), (1, 0)], "two rows": [(0, 1), (2, 3)]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("product", PRODUCTS)
def test_gradients_of_products(product, dtype):
    """One program for all of them."""
    torch.manual_seed(0)
    model = Product(PRODUCTS[product], dtype)
    twin = Product(PRODUCTS[product], dtype)
    twin.load_state_dict(model.state_dict())
    executor = abele.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    # With zeros, eager's gradient has another order in memory, and complex products round differently there.
    has_order = product == "transposed" and dtype.is_complex
    for zeros in [[], []] if has_order else [*ZEROS.values(), []]:
        x = torch.randn(3, 4, dtype=dtype)
        for place in zeros:
            x[place] = 0
        optimizer.zero_grad()
        loss = twin(x)
        loss.backward()
        optimizer.step()
        assert torch.equal(executor(x), loss.detach()), zeros
        assert torch.equal(model.state_dict()["weight"], twin.weight), zeros
