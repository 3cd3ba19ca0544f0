"""E0106: values decide how many random numbers an operator draws, and other stages draw behind it."""

import contextlib

import poptorch
import pytest
import torch

X = torch.linspace(-1, 1, 24).reshape(12, 2)
DRAWS = {
    "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True),
    "poisson": lambda x: torch.poisson(x.abs()),
    "gamma": lambda x: torch._standard_gamma(x.abs() + 0.1),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 30), x.abs()),
    "dirichlet": lambda x: torch._sample_dirichlet(x.abs() + 0.1),
    "branches": lambda x: poptorch.cond(
        x.sum() > 0, lambda a: a + torch.randn(3).sum(), [x], lambda a: a + torch.rand(2), [x]
    )[0],
    "a loop of branches": lambda x: poptorch.for_loop(
        2, lambda a: poptorch.cond(a.sum() > 0, lambda b: b + torch.rand(2), [a], lambda b: b + 1, [a])[0], [x]
    )[0],
}
EAGER = {  # a loop of branches is captured only
    **DRAWS,
    "a loop of branches": lambda x: branch(branch(x)),
}


def branch(x):
    return x + torch.rand(2) if x.sum() > 0 else x + 1


class Model(torch.nn.Module):
    def __init__(self, draws, num_stages):
        super().__init__()
        self.draws, self.num_stages = draws, num_stages

    def forward(self, x):
        with self.block(0):
            x = self.draws(x)
        with self.block(1):
            return x + torch.nn.functional.dropout(x, 0.5, True)

    def block(self, stage):
        return poptorch.Block(str(stage), ipu_id=stage) if self.num_stages == 2 else contextlib.nullcontext()


def executor_of(draws, num_stages, iterations):
    opts = poptorch.Options().deviceIterations(iterations).randomSeed(3).autoRoundNumIPUs(True)
    opts.threadsPerDevice(torch.get_num_threads())
    return poptorch.inferenceModel(Model(draws, num_stages), opts)


@pytest.mark.parametrize("draws", DRAWS)
def test_several_stages_do_not_know_where_it_ends(draws):
    with pytest.raises(poptorch.Error, match="E0106 unsupported-op: .* draws a number of random numbers") as raised:
        executor_of(DRAWS[draws], 2, 4)(X)
    assert "test_E0106_varying_draws.py:" in str(raised.value) and "one device" in str(raised.value)


@pytest.mark.parametrize("draws", DRAWS)
def test_one_stage_draws_as_eager(draws):
    executor = executor_of(DRAWS[draws], 1, 4)
    results = [executor(X), executor(-X)]
    torch.manual_seed(3)
    eager = Model(EAGER[draws], 1)
    for result, batch in zip(results, (X, -X), strict=True):
        assert torch.equal(result, torch.cat([eager(part) for part in batch.split(3)]))


@pytest.mark.parametrize("inplace", [False, True])
def test_rrelu_draws_nothing_in_evaluation(inplace):
    def draws(x):
        return torch.nn.functional.rrelu(x * 2, training=False, inplace=inplace)

    result = executor_of(draws, 2, 4)(X)
    torch.manual_seed(3)
    eager = Model(draws, 1)
    assert torch.equal(result, torch.cat([eager(part) for part in X.split(3)]))


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputation_on_one_stage_draws_as_eager(recompute):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, x):
            x = torch.nn.functional.rrelu(self.layer(x), training=True)
            x = torch.nn.functional.dropout(x * torch.randn(3, 1), 0.5)
            torch.rand(5)  # nobody reads it
            return poptorch.identity_loss(torch.tanh(x), "mean")

    def train(net):
        return torch.optim.SGD(net.parameters(), lr=0.1)

    torch.manual_seed(0)
    net, reference = Net(), Net()
    reference.load_state_dict(net.state_dict())
    opts = poptorch.Options().deviceIterations(1).randomSeed(3).outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(4)
    opts.threadsPerDevice(torch.get_num_threads())
    if recompute:
        opts._Popart.set("autoRecomputation", 3)
    executor, optimizer = poptorch.trainingModel(net, opts, train(net)), train(reference)
    losses = [executor(batch) for batch in (X, -X)]
    torch.manual_seed(3)
    for found, batch in zip(losses, (X, -X), strict=True):
        optimizer.zero_grad()
        expected = [reference(part) for part in batch.split(3)]
        for loss in expected:
            (loss / 4).backward()
        optimizer.step()
        assert torch.equal(found, torch.stack(expected).reshape(found.shape))
    assert torch.equal(net.layer.weight, reference.layer.weight)
