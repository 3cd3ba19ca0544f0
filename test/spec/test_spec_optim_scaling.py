"""optim.md section 4, options.md section 3: automatic loss scaling."""

import poptorch
import pytest
import torch

spec = pytest.mark.spec
ROW = "options/3/setAutomaticLossScaling"


class Slope(torch.nn.Module):
    """The gradient of a weight is x, times the factor of the loss."""

    def __init__(self, dtype=torch.half):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(4, dtype=dtype))

    def forward(self, x):
        return poptorch.identity_loss(self.weight * x, reduction="sum")


def automatic(*, iterations=1, accumulation=1, **settings):
    opts = poptorch.Options()
    opts.deviceIterations(iterations)
    opts.Training.gradientAccumulation(accumulation)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    opts.Training.setAutomaticLossScaling(True)
    for name, value in settings.items():
        opts._Popart.set(f"automaticLossScalingSettings.{name}", value)
    return opts


def sgd(model, **arguments):
    return poptorch.optim.SGD(model.parameters(), lr=1.0, **arguments)


def factor(optimizer):
    return optimizer.state_dict()["ipu_state"]["lossScaleUpdateFactor"].item()


@spec("optim/4", ROW, names=["Training.setAutomaticLossScaling"])
def test_the_factor_doubles_while_gradients_are_small():
    model = Slope()
    optimizer = sgd(model)
    executor = poptorch.trainingModel(model, automatic(), optimizer)
    x = torch.full((4,), 0.5, dtype=torch.half)
    executor.compile(x)
    assert factor(optimizer) == 1
    for step in range(3):
        executor(x)
        assert factor(optimizer) == 2 ** (step + 1)
    assert torch.equal(model.weight, torch.full((4,), -1.5, dtype=torch.half))


@spec("optim/4", ROW)
@pytest.mark.parametrize("edge", [None, 0.5])
def test_the_factor_halves_when_gradients_are_large(edge):
    model = Slope()
    optimizer = sgd(model, loss_scaling=4096.0)
    settings = {} if edge is None else {"binEdgeLocation": edge}
    executor = poptorch.trainingModel(model, automatic(**settings), optimizer)
    x = torch.full((4,), 3.0, dtype=torch.half)  # 12288 of 65504: above 0.125, below 0.5
    executor(x)
    assert factor(optimizer) == (0.5 if edge is None else 2.0)
    executor(x)
    assert factor(optimizer) == (1.0 if edge is None else 4.0)  # 6144 of 0.125, 24576 of 0.5


@spec("optim/4", ROW)
def test_a_share_of_large_elements_is_allowed():
    model = Slope()
    optimizer = sgd(model, loss_scaling=4096.0)
    executor = poptorch.trainingModel(model, automatic(thresholdUpperCountProportion=0.5), optimizer)
    executor(torch.tensor([3.0, 0, 0, 0], dtype=torch.half))
    assert factor(optimizer) == 2.0
    executor(torch.tensor([3.0, 3.0, 3.0, 3.0], dtype=torch.half))
    assert factor(optimizer) == 1.0


@spec("optim/4", ROW)
@pytest.mark.parametrize("iterations", [1, 2])
def test_update_period_counts_optimizer_steps(iterations):
    model = Slope()
    optimizer = sgd(model)
    executor = poptorch.trainingModel(
        model, automatic(iterations=iterations, accumulation=2, updatePeriod=4), optimizer
    )
    x = torch.full((4 * iterations * 2,), 0.5, dtype=torch.half)
    found = []
    for _ in range(8 // iterations):
        executor(x)
        found.append(factor(optimizer))
    assert found == ([1, 1, 1, 2, 2, 2, 2, 4] if iterations == 1 else [1, 2, 2, 4])


@spec("optim/4", ROW)
def test_small_gradients_survive_in_half():
    class Deep(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, dtype=torch.half))

        def forward(self, x):
            y = (self.weight * x) * 2**-12
            return poptorch.identity_loss((y * 2**-13).float(), reduction="sum")

    model = Deep()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=2.0**20)
    executor = poptorch.trainingModel(model, automatic(), optimizer)
    x = torch.ones(4, dtype=torch.half)
    executor(x)
    executor.copyWeightsToHost()
    assert torch.equal(model.weight, torch.ones(4, dtype=torch.half))  # 2^-25 vanishes in float16
    for _ in range(2):
        executor(x)
    assert (model.weight < 1).all()


@spec("optim/4", ROW)
def test_the_scale_of_a_step_can_be_anchored():
    model = Slope()
    opts = automatic()
    opts.anchorTensor("scale", "finalLossScale")
    executor = poptorch.trainingModel(model, opts, sgd(model, loss_scaling=8.0))
    x = torch.full((4,), 0.5, dtype=torch.half)
    found = []
    for _ in range(3):
        executor(x)
        found.append(executor.getAnchoredTensor("scale").item())
    assert found == [8.0, 16.0, 32.0]  # the state before each step


@spec("optim/4", ROW)
@pytest.mark.parametrize("period", [1, 2])
def test_updates_of_one_call_adapt_the_scale(period):
    """A call of several updates does what as many calls of one update do: the scale, the weights, the results."""

    def run(iterations):
        model = Slope()
        optimizer = sgd(model, loss_scaling=4096.0)
        opts = automatic(iterations=iterations, accumulation=2, updatePeriod=period)
        opts.outputMode(poptorch.OutputMode.All)
        opts.anchorTensor("scale", "finalLossScale")
        executor = poptorch.trainingModel(model, opts, optimizer)
        scales, losses = [], []
        for rows in torch.tensor([3.0, 0.1, 3.0, 3.0]).repeat_interleave(2 * 4).half().chunk(4 // iterations):
            losses.append(executor(rows))
            scales += executor.getAnchoredTensor("scale").tolist()
        executor.copyWeightsToHost()
        return scales, torch.cat(losses), model.weight.detach().clone(), factor(optimizer)

    one, four = run(1), run(4)
    assert one[0] == four[0]
    assert len(set(one[0])) > 1
    assert torch.equal(one[1], four[1])
    assert torch.equal(one[2], four[2])
    assert one[3] == four[3]


@spec("optim/4", ROW)
def test_the_start_may_change_and_the_state_is_loaded():
    model = Slope()
    opts = automatic()
    opts.anchorTensor("scale", "finalLossScale")
    optimizer = sgd(model)
    executor = poptorch.trainingModel(model, opts, optimizer)
    x = torch.full((4,), 0.5, dtype=torch.half)
    for _ in range(2):
        executor(x)
    state = optimizer.state_dict()
    optimizer.loss_scaling = 2.0  # not given to the constructor, yet variable
    executor.setOptimizer(optimizer)
    executor(x)
    assert executor.getAnchoredTensor("scale").item() == 2.0 * 4
    optimizer.load_state_dict(state)
    executor(x)
    assert executor.getAnchoredTensor("scale").item() == 2.0 * 4


@spec("optim/4", ROW)
def test_float32_models_are_unaffected():
    def run(opts):
        model = Slope(torch.float32)
        optimizer = sgd(model)
        executor = poptorch.trainingModel(model, opts, optimizer)
        for step in range(3):
            executor(torch.linspace(0.1, 1e5, 4) + step)
        return model.weight.detach().clone(), optimizer, executor

    plain = poptorch.Options()
    plain.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    weight, optimizer, _executor = run(automatic())
    assert torch.equal(weight, run(plain)[0])
    assert factor(optimizer) == 1


@spec("optim/4", ROW)
@pytest.mark.parametrize(
    ("name", "value"), [("binEdgeLocation", 1.5), ("thresholdUpperCountProportion", -0.1), ("updatePeriod", 0)]
)
def test_settings_are_checked(name, value):
    model = Slope()
    executor = poptorch.trainingModel(model, automatic(**{name: value}), sgd(model))
    with pytest.raises(poptorch.Error, match=name):
        executor(torch.ones(4, dtype=torch.half))


def adam(model, **arguments):
    return poptorch.optim.Adam(model.parameters(), lr=0.5, **arguments)


@spec("optim/4", ROW)
@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_overflow_skips_the_update_and_halves_the_factor(make, replicas):
    model = Slope()
    optimizer = make(model, loss_scaling=2.0**20)
    executor = poptorch.trainingModel(model, automatic().replicationFactor(replicas), optimizer)
    x = torch.full((4 * replicas,), 0.5, dtype=torch.half)
    steps = 0
    while True:
        executor(x)
        steps += 1
        if (model.weight != 0).any():
            break
        assert torch.equal(model.weight, torch.zeros(4, dtype=torch.half))
        assert factor(optimizer) == 2.0**-steps and steps < 10
    assert steps == 6  # 2 ** 15 is the largest power of two of float16
    executor(x)
    state = optimizer.state_dict()["ipu_state"]
    assert all(value.isfinite().all() for value in [*state.values(), model.weight])
    if make is adam:
        assert state["Step___weight"] == 2  # skipped updates are not counted


@spec("optim/4", ROW)
def test_an_overflow_of_one_stage_skips_the_updates_of_all():
    class Two(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Parameter(torch.ones(4))
            self.second = torch.nn.Parameter(torch.ones(4, dtype=torch.half))

        def forward(self, x):
            with poptorch.Block(ipu_id=0):
                y = x * self.first
            with poptorch.Block(ipu_id=1):
                return poptorch.identity_loss((y.half() * self.second).float(), reduction="sum")

    model = Two()
    opts = automatic(iterations=2, accumulation=3)
    executor = poptorch.trainingModel(model, opts, sgd(model))
    ones = torch.ones(6 * 4)
    large = ones.clone()
    large[4:8] = 7e4  # of the first update: infinite in float16
    executor(large)
    first = model.first.detach().clone()
    executor.destroy()
    once = Two()
    options = automatic(accumulation=3)
    executor = poptorch.trainingModel(once, options, sgd(once))
    executor(torch.ones(3 * 4))
    assert torch.equal(first, once.first) and torch.equal(model.second, once.second)


@spec("optim/4", ROW)
def test_without_automatic_scaling_an_overflow_is_what_it_is():
    model = Slope()
    opts = poptorch.Options()
    executor = poptorch.trainingModel(model, opts, sgd(model, loss_scaling=2.0**20, max_grad_norm=1.0))
    executor(torch.full((4,), 0.5, dtype=torch.half))
    assert model.weight.isnan().all()


def test_abele_tells_the_scale():
    import abele

    model = Slope()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    executor = abele.trainingModel(model, automatic(), optimizer)
    executor.compile(torch.ones(4, dtype=torch.half))
    assert executor.lossScale() == 1.0
    executor(torch.full((4,), 0.5, dtype=torch.half))
    assert executor.lossScale() == 2.0
