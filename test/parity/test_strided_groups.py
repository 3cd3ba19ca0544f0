"""groupNormStridedChannelGrouping: groups of channels that lie apart, against eager models with permuted channels."""

import copy

import poptorch
import pytest
import torch

nn, functional = torch.nn, torch.nn.functional
STEPS = 3


class Permuted(nn.Module):
    """Eager's form of it: channels g, g + G, g + 2 G, ... become neighbours, and results go back."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        groups, channels = self.norm.num_groups, self.norm.num_channels

        def permuted(value, dim, rows):
            shape = value.shape
            value = value.unflatten(dim, (rows, channels // rows)).transpose(dim, dim + 1)
            return value.reshape(shape).contiguous()

        taken = permuted(x, 1, channels // groups)
        if not x.is_contiguous():
            taken = taken.contiguous(memory_format=torch.channels_last)
        weight, bias = (None if each is None else permuted(each, 0, channels // groups) for each in self.parts())
        return permuted(functional.group_norm(taken, groups, weight, bias, self.norm.eps), 1, groups)

    def parts(self):
        return self.norm.weight, self.norm.bias


class Net(nn.Module):
    def __init__(self, norm, shape, make_norm):
        super().__init__()
        self.first = nn.Conv2d(6, 6, 3, padding=1) if len(shape) == 4 else nn.Conv1d(6, 6, 3, padding=1)
        self.norm = make_norm(norm)

    def forward(self, x):
        y = self.norm(self.first(x)).tanh()
        return y, poptorch.identity_loss(y.square(), "mean")


def options(accumulation=1):
    opts = poptorch.Options().outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(accumulation)
    opts._Popart.set("groupNormStridedChannelGrouping", True)
    return opts


SHAPES = [(2, 6, 5), (2, 6, 4, 4)]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 3, 6])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_trainings(one_thread, shape, groups, affine):
    torch.manual_seed(4)
    norm = nn.GroupNorm(groups, 6, affine=affine)
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    ours = Net(norm, shape, lambda each: each)
    theirs = Net(copy.deepcopy(norm), shape, Permuted)
    theirs.first.load_state_dict(ours.first.state_dict())
    executor = poptorch.trainingModel(ours, options(2), torch.optim.SGD(ours.parameters(), lr=0.5))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.5)
    for _ in range(STEPS):
        x = torch.randn(2 * shape[0], *shape[1:])
        y, loss = executor(x)
        optimizer.zero_grad()
        for k, rows in enumerate(x.chunk(2)):
            expected, expected_loss = theirs(rows)
            (expected_loss / 2).backward()
            assert torch.equal(loss[k], expected_loss) and torch.equal(y.chunk(2)[k], expected)
        optimizer.step()
    for mine, value in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        assert torch.equal(mine, value)


def test_groups_differ_from_neighbours():
    torch.manual_seed(4)
    norm, x = nn.GroupNorm(2, 6), torch.randn(2, 6, 5)
    strided = poptorch.inferenceModel(norm, options())(x)
    assert torch.equal(strided, Permuted(norm)(x)) and not torch.equal(strided, norm(x))
    plain = poptorch.Options()
    plain._Popart.set("groupNormStridedChannelGrouping", False)
    assert torch.equal(poptorch.inferenceModel(norm, plain)(x), norm(x))


def test_channels_last():
    torch.manual_seed(4)
    norm, x = nn.GroupNorm(2, 6), torch.randn(2, 6, 4, 5).to(memory_format=torch.channels_last)
    assert torch.equal(poptorch.inferenceModel(norm, options())(x), Permuted(norm)(x))


def test_loops_stages_and_narrow_types(one_thread):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.GroupNorm(2, 6)

        def forward(self, x):
            return poptorch.for_loop(2, lambda y: [self.norm(y)], [x])[0]

    torch.manual_seed(4)
    model, x = Loop(), torch.randn(2, 6, 5)
    permuted = Permuted(model.norm)
    assert torch.equal(poptorch.inferenceModel(model, options())(x), permuted(permuted(x)))
    half = nn.GroupNorm(3, 6).half()
    assert torch.equal(poptorch.inferenceModel(half, options())(x), Permuted(copy.deepcopy(half).float())(x))
    stages = nn.Sequential(nn.GroupNorm(2, 6), nn.GroupNorm(3, 6))
    expected = Permuted(stages[1])(Permuted(stages[0])(x))
    poptorch.BeginBlock(stages[1], ipu_id=1)
    opts = options().deviceIterations(2)
    assert torch.equal(poptorch.inferenceModel(stages, opts)(torch.cat([x, x]))[:2], expected)
