"""environment.md section 11: operators that torch's CPU does not have for narrow floating types."""

import copy

import poptorch
import pytest
import torch
import torch.nn.functional as F

spec = pytest.mark.spec


def ctc(x, reduction="sum"):
    lengths, target_lengths = torch.tensor([5, 4]), torch.tensor([2, 1])
    return F.ctc_loss(x, torch.tensor([[1, 2], [3, 1]]), lengths, target_lengths, reduction=reduction)


def scaled(mode):
    return lambda x: F.interpolate(x, size=(3, 3), mode=mode, antialias=True)


# Name -> the operator, the shape of its operand, and the operator for the reference where it is another.
OPERATORS = {
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (2, 3, 4, 4, 4), None),
    "cdist": (lambda x: torch.cdist(x[:2], x[2:]), (4, 6), None),
    "cdist, largest difference": (lambda x: torch.cdist(x[:2], x[2:], p=float("inf")), (4, 6), None),
    "pdist": (F.pdist, (4, 6), None),
    "pdist, largest difference": (lambda x: F.pdist(x, float("inf")), (4, 6), None),
    "bilinear": (scaled("bilinear"), (2, 3, 5, 5), None),
    "bicubic": (scaled("bicubic"), (2, 3, 5, 5), None),
    "multi_margin_loss": (lambda x: F.multi_margin_loss(x, torch.tensor([0, 1, 2, 3])), (4, 6), None),
    "multilabel_margin_loss": (
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 2, -1, 0]]).expand(3, 4)),
        (3, 4),
        None,
    ),
    "ctc_loss": (ctc, (5, 2, 4), lambda x: ctc(x, "none")),
}


class Model(torch.nn.Module):
    """The operator on a product; with `cast`, between a cast to float32 and one back."""

    def __init__(self, operator, shape, cast):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(shape))
        self.operator = operator
        self.cast = cast

    def forward(self, x):
        y = self.weight * x
        y = self.operator(y.float()).to(y.dtype) if self.cast else self.operator(y)
        return y, poptorch.identity_loss(y.sum(), reduction="none")


@spec("environment/11/model_in_half")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_computes_in_float32(name, dtype):
    operator, shape, reference = OPERATORS[name]
    torch.manual_seed(5)
    model, x = Model(operator, shape, False).to(dtype), torch.randn(shape).to(dtype)
    expected = Model(reference or operator, shape, True).to(dtype)
    expected.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.25)
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.25))
    for _ in range(3):
        y, loss = executor(x)
        optimizer.zero_grad()
        expected_y, expected_loss = expected(x)
        expected_loss.backward()
        optimizer.step()
        assert loss.dtype == dtype and torch.equal(loss, expected_loss)
        if reference is None:
            assert torch.equal(y, expected_y)
    assert torch.equal(model.weight, expected.weight)
