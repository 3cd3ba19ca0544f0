"""Generators of the program's own: their numbers, and where they stand afterwards, are eager's."""

import copy

import abele
import networks
import pytest
import replicated
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from against_eager import MICRO_BATCH, SEED, eager, options, require_same
from test_matrix import make_strategy
from test_small_normals import ACCUMULATION, STEPS, make_batches, make_executor, sgd
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

DICE = torch.Generator()  # a global variable


class DrawnGradient(torch.autograd.Function):
    """Draws in backward."""

    @staticmethod
    def forward(ctx, x, generator):
        ctx.generator = generator
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.rand(gradient.shape, generator=ctx.generator), None


NOISES = {
    "none": lambda x, g: x,
    "rand": lambda x, g: x * torch.rand(MICRO_BATCH, 1, generator=g),
    "randn(3)": lambda x, g: x + torch.randn(3, generator=g).sum(),
    "randn(16)": lambda x, g: x + torch.randn(networks.WIDTH, generator=g),
    "dropout": lambda x, g: F.dropout(x, 0.3),
    "mask": lambda x, g: x * torch.bernoulli(torch.full_like(x, 0.7), generator=g) / 0.7,
    "backward": lambda x, g: DrawnGradient.apply(x, g),
    "again": lambda x, g: torch.utils.checkpoint.checkpoint(
        lambda y: torch.tanh(y * torch.randn(3, generator=g).mean()), x, use_reentrant=False
    ),
    "unread": lambda x, g: (torch.randn(3, generator=g), x)[1],
    "both": lambda x, g: x + torch.rand(1, generator=g) * torch.randn(1),
}
PROGRAMS = {
    "one": ("rand", "none", "none"),
    "in all": ("randn(3)", "mask", "rand"),
    "beside the device's": ("both", "dropout", "both"),
    "in backward": ("backward", "rand", "backward"),
    "drawn again": ("again", "randn(16)", "again"),
    "unread": ("unread", "randn(3)", "unread"),
}


class Noisy(nn.Module):
    def __init__(self, noise, width, generator):
        super().__init__()
        self.noise, self.linear, self.generator = noise, nn.Linear(networks.WIDTH, width), generator

    def forward(self, x):
        return self.linear(torch.tanh(NOISES[self.noise](x, self.generator)))


def make_model(program, generator=None):
    torch.manual_seed(0)
    generator = generator or torch.Generator().manual_seed(11)
    noises = PROGRAMS[program]
    widths = [networks.WIDTH] * (len(noises) - 1) + [4]
    return networks.Network([Noisy(*part, generator) for part in zip(noises, widths, strict=True)])


def generator_of(model):
    return model.parts[0].generator


def twin(model):
    """A copy whose parts share a generator that stands where the model's stands."""
    other = copy.deepcopy(model)
    generator = torch.Generator()
    generator.set_state(generator_of(model).get_state())
    for part in other.parts:
        part.generator = generator
    return other


def require_equal(ours, expected):
    assert torch.equal(ours[1].reshape(-1), expected[1].reshape(-1)) and torch.equal(ours[0], expected[0])


def state(generator):
    return generator.get_state()


def compare(program, strategy, num_stages, recompute=False):
    model = make_model(program)
    generator = generator_of(model)
    reference = twin(model)
    batches, theirs = make_batches(model), sgd(reference)
    executor = make_executor(model, strategy, num_stages, recompute)
    ours = [(executor(*batch), state(generator)) for batch in batches]
    torch.manual_seed(SEED)
    for (result, left), batch in zip(ours, batches, strict=True):
        require_equal(result, eager(reference, theirs, batch, ACCUMULATION))
        assert torch.equal(left, state(generator_of(reference)))
    require_same(model.state_dict(), reference.state_dict())
    executor.destroy()


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_pipeline_equals_eager(program, num_stages):
    compare(program, "1f1b", num_stages)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("strategy", ["gpipe", "sharded", "serial-phased"])
@pytest.mark.parametrize("program", ["in all", "in backward", "drawn again"])
def test_strategies_equal_eager(program, strategy, recompute):
    compare(program, strategy, 3, recompute)


def test_replicas_equal_eager():
    model = make_model("in all")
    generator, reference = generator_of(model), twin(model)
    models = replicated.copies(reference, 2)
    for part in models[1].parts:
        part.generator = generator_of(reference)
    batches, theirs = make_batches(model, 2), sgd(reference)
    executor = make_executor(model, "1f1b", 2, replicas=2)
    ours = [(executor(*batch), state(generator)) for batch in batches]
    for (result, left), batch in zip(ours, batches, strict=True):
        results = replicated.step(models, theirs, batch, MICRO_BATCH, ACCUMULATION)
        ordered = [each for of_replicas in zip(*results, strict=True) for each in of_replicas]
        require_equal(result, (torch.cat([each[0] for each in ordered]), torch.stack([each[1] for each in ordered])))
        assert torch.equal(left, state(generator_of(reference)))
    require_same(model.state_dict(), reference.state_dict())


DRAWS = {
    "rand": lambda x, g: x + torch.rand(3, 2, generator=g),
    "randn": lambda x, g: x + torch.randn(3, 2, generator=g),
    "randint": lambda x, g: x + torch.randint(2, 9, (3, 2), generator=g),
    "randperm": lambda x, g: x[torch.randperm(3, generator=g)],
    "normal": lambda x, g: torch.normal(x, x.abs() + 1, generator=g),
    "bernoulli": lambda x, g: torch.bernoulli(x.abs(), generator=g),
    "multinomial": lambda x, g: torch.multinomial(x.abs() + 1, 2, generator=g),
    "multinomial with replacement": lambda x, g: torch.multinomial(x.abs() + 1, 5, True, generator=g),
    "poisson": lambda x, g: torch.poisson(x.abs() * 9, generator=g),
    "binomial": lambda x, g: torch.binomial(torch.full_like(x, 30), x.abs(), generator=g),
    "rrelu": lambda x, g: torch._C._nn.rrelu_with_noise(x, torch.zeros_like(x), 0.1, 0.3, True, g),
    **{
        name: lambda x, g, name=name, arguments=arguments: x + getattr(x.clone(), name)(*arguments, generator=g)
        for name, arguments in {
            "random_": (7,),
            "uniform_": (-2, 3),
            "normal_": (1, 2),
            "exponential_": (2,),
            "geometric_": (0.3,),
            "log_normal_": (0, 0.5),
            "cauchy_": (),
            "bernoulli_": (0.4,),
        }.items()
    },
    "a distribution's": lambda x, g: x - torch.empty_like(x).exponential_(generator=g).log(),  # Gumbel
}


class Drawing(nn.Module):
    def __init__(self, draw, generator):
        super().__init__()
        self.draw, self.generator = draw, generator

    def forward(self, x):
        return self.draw(x, self.generator)


def require_inference(make, generator, reference):
    """make: of a generator, its model and how that is called."""
    torch.manual_seed(1)
    batches = [torch.rand(12, 2) - 0.5 for _ in range(3)]
    model, call = make(generator)
    opts = abele.Options().deviceIterations(4).randomSeed(SEED)
    opts.threadsPerDevice(torch.get_num_threads())
    executor = abele.inferenceModel(model, opts)
    ours = [(call(executor, batch), state(generator)) for batch in batches]
    torch.manual_seed(SEED)
    model, call = make(reference)
    for (result, left), batch in zip(ours, batches, strict=True):
        assert torch.equal(result, torch.cat([call(model, part) for part in batch.split(3)]))
        assert torch.equal(left, state(reference))


def plain(model, x):
    return model(x)


@pytest.mark.parametrize("draw", DRAWS)
def test_operators_that_take_a_generator(draw):
    require_inference(
        lambda g: (Drawing(DRAWS[draw], g), plain), torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    )


def test_a_generator_that_has_a_spare():
    generators = [torch.Generator().manual_seed(5) for _ in range(2)]
    for generator in generators:
        torch.randn(3, generator=generator)
    require_inference(lambda g: (Drawing(DRAWS["normal_"], g), plain), *generators)


def test_a_global_variable():
    class Globally(nn.Module):
        def forward(self, x):
            return x + torch.randn(3, 2, generator=DICE)

    DICE.manual_seed(8)
    executor = abele.inferenceModel(Globally())
    ours = executor(torch.zeros(3, 2)), executor(torch.zeros(3, 2))
    DICE.manual_seed(8)
    assert all(torch.equal(each, torch.randn(3, 2, generator=DICE)) for each in ours)


@pytest.mark.parametrize("hold", ["dict", "object", "closure", "argument"])
def test_where_a_generator_may_be(hold):
    class Config:
        pass

    def make(generator):
        model = Drawing(DRAWS["randn"], None)
        config = Config()
        config.inner = {"noise": [generator]}
        if hold == "dict":
            model.draw = lambda x, g: DRAWS["randn"](x, model.held["noise"])
            model.held = {"noise": generator}
        elif hold == "object":
            model.draw = lambda x, g: DRAWS["randn"](x, model.config.inner["noise"][0])
            model.config = config
        elif hold == "closure":
            model.draw = lambda x, g: DRAWS["randn"](x, generator)
        else:

            class Given(nn.Module):
                def forward(self, x, generator=None):
                    return x + torch.randn(3, 2, generator=generator)

            return Given(), lambda called, x: called(x, generator=generator)
        return model, plain

    require_inference(make, torch.Generator().manual_seed(5), torch.Generator().manual_seed(5))


@pytest.mark.parametrize("seed", [3, 4])  # one of them is the seed that it has before
def test_a_generator_that_forward_seeds(seed):
    def seeded(x, g):
        g.manual_seed(3)
        return x + torch.randn(3, generator=g).sum() + torch.rand(3, 2, generator=g)

    generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
    require_inference(lambda g: (Drawing(seeded, g), plain), *generators)


def test_two_generators():
    def both(x, g):
        return x + torch.randn(3, generator=g[0]).sum() + torch.randn(1, generator=g[1]) * torch.rand(1, generator=g[0])

    seeds = (4, 5)
    ours, theirs = ([torch.Generator().manual_seed(seed) for seed in seeds] for _ in range(2))
    executor = abele.inferenceModel(Drawing(both, ours))
    x = torch.zeros(3, 2)
    for _ in range(3):
        assert torch.equal(executor(x), both(x, theirs))
    assert all(torch.equal(state(a), state(b)) for a, b in zip(ours, theirs, strict=True))


def test_seeds_between_calls_count():
    generator = torch.Generator().manual_seed(5)
    executor = abele.inferenceModel(Drawing(DRAWS["randn"], generator))
    x = torch.zeros(3, 2)
    first = executor(x)
    assert not torch.equal(executor(x), first)
    generator.manual_seed(5)
    assert torch.equal(executor(x), first)


def test_a_step_that_fails_draws_nothing():
    def checked(x, g):
        y = x + torch.rand(3, 2, generator=g)
        torch._assert_async((x > -1).all())
        return y

    generator = torch.Generator().manual_seed(5)
    executor = abele.inferenceModel(Drawing(checked, generator), abele.Options().deviceIterations(2))
    executor(torch.zeros(6, 2))
    before = state(generator)
    with pytest.raises(abele.Error):
        executor(torch.tensor([0.0, -2.0]).repeat_interleave(6).reshape(6, 2))
    assert torch.equal(state(generator), before)


def test_a_program_of_the_cache_draws_from_this_process_generator(tmp_path):
    opts = abele.Options().enableExecutableCaching(str(tmp_path))
    results = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(5)
        results.append(abele.inferenceModel(Drawing(DRAWS["randn"], generator), opts)(torch.zeros(3, 2)))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], torch.randn(3, 2, generator=torch.Generator().manual_seed(5)))


def test_verify_equals_and_leaves_it_alone():
    model = make_model("in backward")
    before = state(generator_of(model))
    opts = options(lambda: make_strategy("1f1b", 1, recompute=False), ACCUMULATION)
    executor = abele.trainingModel(model, opts, sgd(model))
    assert abele.verify(executor, *(model.batch(MICRO_BATCH * ACCUMULATION) for _ in range(STEPS)))
    assert torch.equal(state(generator_of(model)), before)
