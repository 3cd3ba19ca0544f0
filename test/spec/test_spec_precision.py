"""options.md section 4 and environment.md section 11: precision."""

import copy

import poptorch
import pytest
import torch

spec = pytest.mark.spec


class Net(torch.nn.Module):
    """A small network of a norm, products and a non-linearity."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.first = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.last = torch.nn.Linear(16, 4)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)

    def forward(self, x):
        y = self.last(torch.nn.functional.gelu(self.norm(self.first(x))))
        return y, poptorch.identity_loss(y.square(), reduction="mean")


def batch(rows=4, dtype=torch.float32):
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(3)).to(dtype)


def options(*, training=True, accumulation=1, seed=None):
    opts = poptorch.Options()
    if training:
        opts.Training.gradientAccumulation(accumulation)
    if seed is not None:
        opts.randomSeed(seed)
    return opts


def train(model, x, opts=None, steps=3, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, opts, optimizer)
    losses = [executor(x)[1].clone() for _ in range(steps)]
    executor.copyWeightsToHost()
    return torch.stack(losses), {name: value.detach().clone() for name, value in model.state_dict().items()}


def eager(model, x, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x)[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), {name: value.detach().clone() for name, value in model.state_dict().items()}


def assert_same(ours, theirs):
    assert torch.equal(ours[0], theirs[0])
    assert ours[1].keys() == theirs[1].keys()
    for name, value in ours[1].items():
        assert value.dtype == theirs[1][name].dtype and torch.equal(value, theirs[1][name]), name


def infer(model, *arguments, opts=None):
    return poptorch.inferenceModel(model, opts)(*arguments)


# Half and mixed models -----------------------------------------------------------------------------------------------
@spec("environment/11/model_in_half")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_half_trains_as_in_torch(dtype):
    model, x = Net().to(dtype), batch(dtype=dtype)
    assert_same(train(copy.deepcopy(model), x), eager(model, x))


@spec("environment/11/model_in_half")
def test_small_updates_of_a_half_model_vanish():
    class Drift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, dtype=torch.half))

        def forward(self, x):
            return self.weight, poptorch.identity_loss(self.weight * x, reduction="sum")

    model = Drift()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-4))
    executor(torch.ones(4, dtype=torch.half))
    assert torch.equal(model.weight, torch.ones(4, dtype=torch.half))


@spec("environment/11/mixed_operands")
def test_elementwise_operators_of_mixed_operands_follow_torch():
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((8,), 1 + 2**-12))

        def forward(self, x):
            return x * self.weight, (x * self.weight).half(), (x.float() + 2**-12).to(torch.float16)

    x = torch.ones(2, 8, dtype=torch.half)
    model = Mixed()
    ours, theirs = infer(model, x), model(x)
    assert [value.dtype for value in ours] == [torch.float32, torch.float16, torch.float16]
    for mine, value in zip(ours, theirs, strict=True):
        assert torch.equal(mine, value)


@spec("environment/11/mixed_operands")
def test_half_layers_inside_a_float32_model():
    class Inner(Net):
        def forward(self, x):
            y = self.norm(self.first(x).float())
            y = self.last(y.half()).float()
            return y, poptorch.identity_loss(y.square(), reduction="mean")

    model, x = Inner(), batch()
    model.first.half()
    model.last.half()
    assert_same(train(copy.deepcopy(model), x.half()), eager(model, x.half()))


@spec("environment/11/norm_statistics", "options/4/Precision.runningStatisticsAlwaysFloat")
@pytest.mark.parametrize("statistics", [torch.float16, torch.float32])
def test_running_statistics_keep_the_type_of_the_module(statistics):
    class Norm(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(8)

        def forward(self, x):
            y = self.norm(x.to(self.norm.weight.dtype))
            return y, poptorch.identity_loss(y.square(), reduction="mean")

    model = Norm().half() if statistics == torch.float16 else Norm()
    reference, x = copy.deepcopy(model), batch(dtype=torch.half)
    _, ours = train(model, x)
    _, theirs = eager(reference, x)
    assert ours["norm.running_mean"].dtype == ours["norm.running_var"].dtype == statistics
    assert torch.equal(ours["norm.running_mean"], theirs["norm.running_mean"])
    assert torch.equal(ours["norm.running_var"], theirs["norm.running_var"])


@spec("environment/11/partials", "options/4/Precision.setPartialsType", names=["Precision.setPartialsType"])
def test_partials_type_allows_but_does_not_force_half():
    model, x = Net().half(), batch(dtype=torch.half)
    opts = options()
    opts.Precision.setPartialsType(torch.half)
    assert_same(train(copy.deepcopy(model), x, opts), eager(model, x))


# Stochastic rounding -------------------------------------------------------------------------------------------------
class Between(torch.nn.Module):
    """A number a quarter of the way between two neighbours in float16."""

    def forward(self, x):
        return x.half()


X = torch.full((1, 4096), 1 + 2**-12)


@spec(
    "environment/11/stochastic_rounding",
    "options/4/Precision.enableStochasticRounding",
    names=["Precision.enableStochasticRounding"],
)
def test_stochastic_rounding_is_unbiased_and_seeded():
    def rounded(seed, enabled=True):
        opts = options(training=False, seed=seed)
        opts.Precision.enableStochasticRounding(enabled)
        return infer(Between(), X, opts=opts)

    assert torch.equal(rounded(1, enabled=False), torch.ones_like(X).half())  # off: to nearest
    found = rounded(1)
    assert set(found.unique().tolist()) == {1.0, 1 + 2**-10}
    share = (found > 1).float().mean().item()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / 4096) ** 0.5
    assert torch.equal(found, rounded(1))
    assert not torch.equal(found, rounded(2))


@spec("environment/11/stochastic_rounding")
def test_stochastic_rounding_differs_from_run_to_run():
    opts = options(training=False, seed=1)
    opts.Precision.enableStochasticRounding(True)
    executor = poptorch.inferenceModel(Between(), opts)
    assert not torch.equal(executor(X), executor(X))


@spec("environment/11/stochastic_rounding")
def test_numbers_that_half_holds_are_not_rounded():
    values = torch.tensor([[0.0, -0.0, 1.0, -65504.0, 2**-24, float("inf"), -float("inf")]])
    opts = options(training=False, seed=1)
    opts.Precision.enableStochasticRounding(True)
    executor = poptorch.inferenceModel(Between(), opts)
    for _ in range(3):
        assert torch.equal(executor(values), values.half())
        assert torch.equal(torch.signbit(executor(values)), torch.signbit(values))
    assert executor(torch.full_like(values, float("nan"))).isnan().all()


@spec("environment/11/stochastic_rounding")
@pytest.mark.parametrize("sign", [1, -1])
def test_stochastic_rounding_of_subnormals_and_signs(sign):
    opts = options(training=False, seed=4)
    opts.Precision.enableStochasticRounding(True)
    found = infer(Between(), torch.full((1, 4096), sign * 1.5 * 2**-24), opts=opts)
    assert set((found * sign * 2.0**24).unique().tolist()) == {1.0, 2.0}


@spec("environment/11/stochastic_rounding")
def test_half_results_of_operators_are_rounded_stochastically():
    model, x = Net().half(), batch(2048, torch.half)
    exact = copy.deepcopy(model).double()(x.double())[0]
    opts = options(training=False, seed=5)
    opts.Precision.enableStochasticRounding(True)
    executor = poptorch.inferenceModel(model, opts)
    runs = torch.stack([executor(x)[0].double() for _ in range(16)])
    assert not torch.equal(runs[0], runs[1])
    nearest = (model(x)[0].double() - exact).abs().mean()
    assert (runs.mean(0) - exact).abs().mean() < nearest  # errors average out


@spec("environment/11/stochastic_rounding")
@pytest.mark.parametrize("stages", [1, 2])
def test_weight_updates_round_stochastically(stages):
    class Drift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8192, dtype=torch.half))

        def forward(self, x):
            with poptorch.Block(ipu_id=0):
                y = self.weight * x
            with poptorch.Block(ipu_id=stages - 1):
                return poptorch.identity_loss(y, reduction="sum")

    model = Drift()
    opts = options(accumulation=3, seed=6)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    opts.Precision.enableStochasticRounding(True)
    lr = 2**-14 / 3  # the step is an eighth of the distance to the next number below 1
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=lr))
    executor(torch.ones(3, dtype=torch.half))
    moved = (model.weight < 1).float().mean().item()
    assert set(model.weight.detach().unique().tolist()) == {1.0, 1 - 2**-11}
    assert abs(moved - 0.125) < 5 * (0.125 * 0.875 / 8192) ** 0.5


@spec("options/4/Precision.enableStochasticRounding")
def test_stochastic_rounding_leaves_float32_alone():
    model, x = Net(), batch()
    opts = options()
    opts.Precision.enableStochasticRounding(True)
    assert_same(train(copy.deepcopy(model), x, opts), eager(model, x))


# Floating-point exceptions -------------------------------------------------------------------------------------------
def raising():
    opts = options(training=False)
    opts.Precision.enableFloatingPointExceptions(True)
    return opts


INF = float("inf")


@spec("options/4/Precision.enableFloatingPointExceptions", names=["Precision.enableFloatingPointExceptions"])
@pytest.mark.parametrize(
    ("name", "function", "values"),
    [
        ("division by zero", lambda x: 1 / x, [0.0, 1.0]),
        ("zero by zero", lambda x: x / (x * 2), [0.0, 1.0]),
        ("0 * inf", lambda x: x * 0, [INF, 1.0]),
        ("inf - inf", lambda x: x - x, [INF, 1.0]),
        ("root", torch.sqrt, [-1.0, 1.0]),
        ("log of a negative number", torch.log, [-1.0, 1.0]),
        ("log of zero", torch.log, [0.0, 1.0]),
        ("NaN comparison", lambda x: x > 0, [float("nan"), 1.0]),
        ("overflow", lambda x: x * x, [1e30, 1.0]),
        ("overflow of half", lambda x: x.half(), [1e5, 1.0]),
        ("overflow of a function", torch.exp, [100.0, 1.0]),
        ("in place", lambda x: x.clone().div_(0), [1.0, 1.0]),
    ],
)
def test_floating_point_exceptions(name, function, values):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function(x)

    x = torch.tensor([values])
    assert torch.equal(infer(Model(), x).isnan(), Model()(x).isnan())  # off: values as in torch
    executor = poptorch.inferenceModel(Model(), raising())
    executor.compile(torch.ones(1, 2))
    with pytest.raises(poptorch.Error, match="E0604"):
        executor(x)


@spec("options/4/Precision.enableFloatingPointExceptions")
def test_infinities_of_the_program_itself_are_no_exceptions():
    class Attention(torch.nn.Module):
        def forward(self, x, mask):
            scores = (x @ x.transpose(0, 1)).masked_fill(mask, -INF)
            bias = torch.full((4, 4), -INF).triu(1)
            return torch.softmax(scores, -1) + torch.softmax(scores + bias, -1)

    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[:, 3] = True
    model, x = Attention(), batch()
    assert torch.equal(infer(model, x, mask, opts=raising()), model(x, mask))


@spec("options/4/Precision.enableFloatingPointExceptions")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_exceptions_do_not_change_results(dtype):
    model, x = Net().to(dtype), batch(dtype=dtype)
    opts = options()
    opts.Precision.enableFloatingPointExceptions(True)
    assert_same(train(copy.deepcopy(model), x, opts), eager(model, x))


@spec("options/4/Precision.enableFloatingPointExceptions")
def test_an_update_that_overflows_leaves_the_weights():
    class Push(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(torch.ones(2))
            self.b = torch.nn.Parameter(torch.ones(2))

        def forward(self, x):
            return poptorch.identity_loss(self.a * x[:, 0] + self.b * x[:, 1], reduction="sum")

    model = Push()
    opts = options()
    opts.Precision.enableFloatingPointExceptions(True)
    executor = poptorch.trainingModel(model, opts, torch.optim.SGD(model.parameters(), lr=100.0))
    with pytest.raises(poptorch.Error, match="E0604"):
        executor(torch.tensor([[1.0, 1e37]] * 2))
    assert torch.equal(model.a, torch.ones(2)) and torch.equal(model.b, torch.ones(2))
    executor(torch.ones(2, 2))
    assert torch.equal(model.a, torch.full((2,), 1 - 100.0))


# Other types ---------------------------------------------------------------------------------------------------------
@spec("environment/11/integers")
def test_wide_types_come_back_narrow():
    class Model(torch.nn.Module):
        def forward(self, i, x):
            return i + 1, x * 2

    numbers, doubles = infer(Model(), torch.tensor([[1, 2]]), torch.tensor([[1.5, 2.5]], dtype=torch.float64))
    assert numbers.dtype == torch.int32 and numbers.tolist() == [[2, 3]]
    assert doubles.dtype == torch.float32 and doubles.tolist() == [[3.0, 5.0]]


@spec("environment/11/dtype_of_factory_calls")
def test_factories_follow_torch():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x + torch.ones(2), x + torch.zeros(2, dtype=torch.half), torch.full_like(x, 3), torch.arange(2) + 0.5

    ours, theirs = infer(Model(), torch.ones(1, 2).half()), Model()(torch.ones(1, 2).half())
    assert [value.dtype for value in ours] == [value.dtype for value in theirs]
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@spec("environment/11/integer_arguments_with_random_ops")
def test_randint_without_a_type_gives_int32():
    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.randint(0, 10, (64,)) + x.int() * 0

    found = infer(Model(), torch.ones(64))
    assert found.dtype == torch.int32 and 0 <= found.min() and found.max() < 10


@spec("environment/11/complex", differs="bfloat16 is accepted and runs as in torch")
def test_types_the_device_does_not_take():
    class Model(torch.nn.Module):
        def forward(self, x):
            return x * 2

    for wrong in (torch.ones(1, 2, dtype=torch.complex64), torch.ones(1, 2).to_sparse()):
        with pytest.raises(poptorch.Error, match="E0708"):
            infer(Model(), wrong)
    brain = torch.tensor([[1.5, 2.5]], dtype=torch.bfloat16)
    assert torch.equal(infer(Model(), brain), brain * 2)


@spec("options/4/Precision.halfFloatCasting", "options/4/Precision.runningStatisticsAlwaysFloat")
def test_deprecated_settings_change_nothing():
    model, x = Net().half(), batch(dtype=torch.half)
    opts = options()
    opts.Precision.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat)
    opts.Precision.runningStatisticsAlwaysFloat(True)
    assert_same(train(copy.deepcopy(model), x, opts), eager(model, x))
