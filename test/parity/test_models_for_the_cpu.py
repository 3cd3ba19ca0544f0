"""A model written for the CPU takes the way that it takes in eager PyTorch: device, autocast, torch.compiler."""

import abele
import poptorch
import pytest
import torch
from torch.utils import checkpoint

PACKAGES = pytest.mark.parametrize("package", [abele, poptorch], ids=["abele", "poptorch"])


class Apply(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def test_the_device_is_the_cpu():
    seen = []

    def forward(x):
        y = torch.ones(3, device=x.device) + x
        seen.append((x.device, y.device.type, x.is_cpu, y.is_ipu, y.new_zeros(1).device.type))
        return y

    abele.inferenceModel(Apply(forward))(torch.ones(3))
    assert seen == [(torch.device("cpu"), "cpu", True, False, "cpu")] * 2  # captured twice


def test_poptorch_says_one_thing_in_all_ways():
    seen = []

    def forward(x):
        seen.append((x.device.type, x.is_cpu, x.is_ipu, torch.ones(2, device=x.device).is_ipu))
        return x * 2

    poptorch.inferenceModel(Apply(forward))(torch.ones(3))
    assert seen == [("ipu", False, True, True)]
    assert torch.ones(2).is_cpu and not torch.ones(2).is_ipu


class Experts(torch.nn.Module):
    """A mixture of experts that counts tokens with the kernel that its device has."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.router = torch.nn.Linear(4, 3)
        self.experts = torch.nn.Parameter(torch.randn(3, 4, 4))

    def forward(self, x):
        weights, chosen = torch.topk(torch.softmax(self.router(x), -1), 1)
        experts = chosen.flatten()
        counted = experts.float() if x.device.type == "cpu" else experts.int()
        count = torch.histc(counted, bins=3, min=0, max=2)
        y = torch.bmm(x[:, None], self.experts[experts])[:, 0] * weights
        return poptorch.identity_loss((y / count[experts][:, None]).square().mean(), "none")


def trained(executor_of, model, inputs):
    executor = executor_of(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    losses = [executor(x).reshape(()) for x in inputs]
    return losses, list(model.state_dict().values())


def eagerly(model, inputs):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for x in inputs:
        optimizer.zero_grad()
        losses.append(model(x))
        losses[-1].backward()
        optimizer.step()
    return losses, list(model.state_dict().values())


def require_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, a, b))


def test_experts_count_as_in_eager():
    inputs = [torch.randn(5, 4) for _ in range(3)]
    require_same(trained(abele.trainingModel, Experts(), inputs), eagerly(Experts(), inputs))


class Recomputing(torch.nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.w, self.use_reentrant = torch.nn.Parameter(torch.randn(4)), use_reentrant
        self.last, self.seen = torch.nn.Linear(4, 4), []

    def part(self, x):
        self.seen.append((x.device.type, x.is_cpu, torch.compiler.is_compiling()))
        return torch.tanh(self.w * x) + torch.arange(4, device=x.device)

    def forward(self, x):
        y = checkpoint.checkpoint(self.part, self.last(x), use_reentrant=self.use_reentrant)
        return poptorch.identity_loss(y.square().mean(), "none")


@PACKAGES
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_recomputation_sees_what_forward_saw(package, use_reentrant):
    inputs = [torch.randn(5, 4) for _ in range(3)]
    ours = Recomputing(use_reentrant)
    require_same(trained(package.trainingModel, ours, inputs), eagerly(Recomputing(use_reentrant), inputs))
    captures = 2 if package is abele else 1
    assert len(ours.seen) == 2 * captures and len(set(ours.seen)) == 1


@PACKAGES
def test_no_compiler_is_seen(package):
    def forward(x):
        return x.exp() if torch.compiler.is_compiling() or torch.compiler.is_dynamo_compiling() else x.sin()

    x = torch.randn(3)
    assert torch.equal(package.inferenceModel(Apply(forward))(x), x.sin())


class Autocasting(torch.nn.Module):
    """Rotary positions are computed in float32, whatever the rest is computed in."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (torch.nn.Linear(8, 8, bias=False) for _ in range(3))
        self.out, self.norm = torch.nn.Linear(8, 8), torch.nn.RMSNorm(8)
        self.register_buffer("frequencies", 1.0 / 100 ** (torch.arange(0, 8, 2).float() / 8))

    def positions(self, x):
        kind = x.device.type
        if torch.is_autocast_enabled(kind):
            with torch.autocast(kind, enabled=False):
                return self.angles(x)
        return self.angles(x)

    def angles(self, x):
        angles = self.frequencies[None, :, None] @ torch.arange(x.shape[1], device=x.device).float()[None, None, :]
        angles = torch.cat([angles, angles], 1).transpose(1, 2)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            assert torch.is_autocast_enabled(x.device.type)
            assert torch.get_autocast_dtype(x.device.type) == torch.bfloat16
            cos, sin = self.positions(x)
            y = self.norm(x)
            turned = [t * cos + torch.cat([-t[..., 4:], t[..., :4]], -1) * sin for t in (self.q(y), self.k(y))]
            y = torch.nn.functional.scaled_dot_product_attention(*turned, self.v(y), is_causal=True)
            y = x + self.out(torch.nn.functional.silu(y) @ self.out.weight)
            loss = torch.nn.functional.mse_loss(y.float(), x)
        return poptorch.identity_loss(loss, "none")


@PACKAGES
def test_autocast(package):
    inputs = [torch.randn(2, 5, 8) for _ in range(3)]
    require_same(trained(package.trainingModel, Autocasting(), inputs), eagerly(Autocasting(), inputs))


@PACKAGES
def test_casts_that_autocast_keeps(package):
    """Until its outermost context ends, over calls of eager, compilations and changes of weights."""
    model, x = torch.nn.Linear(8, 8), torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x)
        executor = package.inferenceModel(model)
        executor(x)
        with torch.no_grad():
            model.weight.add_(1)
        executor.copyWeightsToDevice()
        result = executor(x)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert torch.equal(result, model(x))
