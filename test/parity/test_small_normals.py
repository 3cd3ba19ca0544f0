"""Normal numbers drawn one at a time: torch makes two at once and keeps the second, the spare, for the next one.

It does so in `normal_` of fewer than 16 elements and of tensors with gaps. The spare passes from stage to stage, from
one micro-batch to the next and from step to step; who takes it draws nothing.
"""

import contextlib
import copy

import networks
import poptorch
import pytest
import replicated
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from against_eager import MICRO_BATCH, SEED, eager, options, require_same
from test_matrix import make_strategy
from torch import nn

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS, ACCUMULATION, ITERATIONS = 3, 5, 2
STRATEGIES = ("1f1b", "gpipe", "zero-bubble", "sharded", "serial-phased", "parallel-phased")

NOISES = {
    "none": lambda x: x,
    "dropout": lambda x: F.dropout(x, 0.3),
    "randn(1)": lambda x: x + torch.randn(1),
    "randn(2)": lambda x: x * torch.randn(2, 1),
    "randn(3)": lambda x: x + torch.randn(3).sum(),
    "randn(16)": lambda x: x + torch.randn(networks.WIDTH),  # drawn in bulk: no spare
    "randn_like(5)": lambda x: x + torch.randn_like(x[0, :5]).mean(),
    "normal_ of every third": lambda x: x + torch.zeros(17, 3).double()[:, 0].normal_(1, 2).float().mean(),
    "normal_ with gaps": lambda x: x + torch.zeros(7, 6).narrow(1, 1, 3).normal_(0.5, 0.1).sum(),
    "normal(mean, std)": lambda x: x + torch.normal(x[0, :3].detach(), x[1, :3].detach().abs()).sum(),
    "log_normal_": lambda x: x * torch.empty(3).log_normal_(0, 0.1).mean(),
    "unread": lambda x: (torch.randn(3), x)[1],
    "again": lambda x: torch.utils.checkpoint.checkpoint(
        lambda y: torch.tanh(y * torch.randn(3).mean() + F.dropout(y, 0.2)), x, use_reentrant=False
    ),
}
PROGRAMS = {
    "one odd": ("none", "randn(3)", "none", "none", "none", "none"),
    "one even": ("randn(2)", "none", "none", "none", "none", "none"),
    "odd in the last": ("dropout", "none", "dropout", "none", "none", "randn(1)"),
    "odd in the first": ("randn(1)", "dropout", "none", "dropout", "none", "dropout"),
    "odd in all": ("randn(1)", "dropout", "randn(3)", "dropout", "randn_like(5)", "dropout"),
    "odd twice": ("randn(3)", "dropout", "dropout", "none", "randn(1)", "none"),
    "odd and even": ("randn(3)", "randn(2)", "dropout", "randn(2)", "randn(16)", "randn(2)"),
    "with gaps": ("normal_ with gaps", "dropout", "normal_ of every third", "dropout", "randn(1)", "normal_ with gaps"),
    "other operators": ("normal(mean, std)", "dropout", "log_normal_", "randn(16)", "log_normal_", "normal(mean, std)"),
    "unread numbers": ("unread", "dropout", "randn(2)", "unread", "unread", "randn(1)"),
    "drawn again": ("again", "dropout", "again", "randn(2)", "again", "randn(1)"),
}


class Noisy(nn.Module):
    def __init__(self, noise, width):
        super().__init__()
        self.noise, self.linear = noise, nn.Linear(networks.WIDTH, width)

    def forward(self, x):
        return self.linear(torch.tanh(NOISES[self.noise](x)))


def make_model(program):
    torch.manual_seed(0)
    noises = PROGRAMS[program]
    widths = [networks.WIDTH] * (len(noises) - 1) + [4]
    return networks.Network([Noisy(noise, width) for noise, width in zip(noises, widths, strict=True)])


def make_batches(model, parts=1):
    torch.manual_seed(1)
    return [model.batch(MICRO_BATCH * ACCUMULATION * ITERATIONS * parts) for _ in range(STEPS)]


def make_executor(model, strategy, num_stages, recompute=False, replicas=1):
    for stage in range(num_stages):
        poptorch.BeginBlock(model.parts[stage * len(model.parts) // num_stages], str(stage))
    opts = options(lambda: make_strategy(strategy, num_stages, recompute), ACCUMULATION, ITERATIONS)
    opts.replicationFactor(replicas)
    if recompute:
        opts._Popart.set("autoRecomputation", 3)
    return poptorch.trainingModel(model, opts, sgd(model))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def random_state(executor):
    return torch.tensor(executor.rng_state[1:], dtype=torch.uint8)


def require_equal(ours, expected):
    assert torch.equal(ours[1].reshape(-1), expected[1].reshape(-1)) and torch.equal(ours[0], expected[0])


def compare(program, strategy, num_stages, recompute=False):
    model = make_model(program)
    reference = copy.deepcopy(model)
    batches, theirs = make_batches(model), sgd(reference)
    executor = make_executor(model, strategy, num_stages, recompute)
    ours = [(executor(*batch), random_state(executor)) for batch in batches]
    torch.manual_seed(SEED)
    for (result, state), batch in zip(ours, batches, strict=True):
        require_equal(result, eager(reference, theirs, batch, ACCUMULATION))
        assert torch.equal(state, torch.get_rng_state())
    require_same(model.state_dict(), reference.state_dict())
    executor.destroy()


@pytest.mark.parametrize("num_stages", [1, 2, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_pipeline_equals_eager(program, num_stages):
    compare(program, "1f1b", num_stages)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("program", ["odd in all", "odd in the first", "drawn again"])
def test_every_strategy_equals_eager(program, strategy, recompute):
    compare(program, strategy, 3, recompute)


@pytest.mark.parametrize("num_stages", [1, 2])
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("program", ["odd in all", "odd twice", "one odd"])
def test_replicas_equal_eager(program, replicas, num_stages):
    model = make_model(program)
    models = replicated.copies(copy.deepcopy(model), replicas)
    batches, theirs = make_batches(model, replicas), sgd(models[0])
    executor = make_executor(model, "1f1b", num_stages, replicas=replicas)
    ours = [(executor(*batch), random_state(executor)) for batch in batches]
    torch.manual_seed(SEED)
    for (result, state), batch in zip(ours, batches, strict=True):
        results = replicated.step(models, theirs, batch, MICRO_BATCH, ACCUMULATION)
        ordered = [each for of_replicas in zip(*results, strict=True) for each in of_replicas]
        require_equal(result, (torch.cat([each[0] for each in ordered]), torch.stack([each[1] for each in ordered])))
        assert torch.equal(state, torch.get_rng_state())
    require_same(model.state_dict(), models[0].state_dict())
    executor.destroy()


@pytest.mark.parametrize("num_stages", [1, 3])
def test_a_state_with_a_spare_is_where_it_goes_on(num_stages):
    """The random state that an executor is given, and the one that it gives, keep the spare."""
    model = make_model("odd in the last")
    reference, batches = copy.deepcopy(model), make_batches(model)
    executor = make_executor(model, "1f1b", num_stages)
    executor.compile(*batches[0])
    torch.manual_seed(23)
    torch.randn(3)
    executor.rng_state = [executor.rng_state[0], *torch.get_rng_state().tolist()]
    before = torch.get_rng_state()
    result = executor(*batches[0])
    torch.set_rng_state(before)
    require_equal(result, eager(reference, sgd(reference), batches[0], ACCUMULATION))
    assert torch.equal(random_state(executor), torch.get_rng_state())
    executor.destroy()


@pytest.mark.parametrize("program", ["odd in all", "odd in the last", "with gaps"])
def test_a_saved_executable_goes_on_with_the_spare(program, tmp_path):
    def infer(model):
        for stage in range(3):
            poptorch.BeginBlock(model.parts[2 * stage], str(stage))
        opts = poptorch.Options().deviceIterations(5).randomSeed(SEED).autoRoundNumIPUs(True)
        opts.setExecutionStrategy(make_strategy("1f1b", 3, False))
        opts.threadsPerDevice(torch.get_num_threads())
        return poptorch.inferenceModel(model, opts)

    model = make_model(program)
    torch.manual_seed(1)
    batches = [model.batch(MICRO_BATCH * 5) for _ in range(2 * STEPS)]
    executor = infer(copy.deepcopy(model))
    ours = [executor(*batch) for batch in batches[:STEPS]]
    executor.save(str(tmp_path / "model.poptorch"))
    executor.destroy()
    loaded = poptorch.load(str(tmp_path / "model.poptorch"))
    ours += [loaded(*batch) for batch in batches[STEPS:]]
    loaded.destroy()
    torch.manual_seed(SEED)
    with torch.no_grad():
        for (output, _), batch in zip(ours, batches, strict=True):
            parts = zip(*(tensor.split(MICRO_BATCH) for tensor in batch), strict=True)
            assert torch.equal(output, torch.cat([model(*part)[0] for part in parts]))


@pytest.mark.parametrize("num_stages", [1, 2])
def test_loops_draw_normal_numbers(num_stages):
    """Each iteration draws an odd number of them, and others behind."""

    class Looping(nn.Module):
        def forward(self, x):
            with self.block(0):
                x = poptorch.for_loop(3, self.body, [x])[0] + torch.randn(2)
            with self.block(1):
                return poptorch.for_loop(2, self.body, [x])[0] + torch.randn(1)

        def block(self, stage):
            return poptorch.Block(str(stage), ipu_id=stage) if num_stages == 2 else contextlib.nullcontext()

        def body(self, x):
            return F.dropout(x + torch.randn(3).sum(), 0.3, True)

    opts = poptorch.Options().deviceIterations(4).randomSeed(SEED).autoRoundNumIPUs(True)
    opts.threadsPerDevice(torch.get_num_threads())
    executor = poptorch.inferenceModel(Looping(), opts)
    batches = [torch.ones(8, 2), torch.zeros(8, 2)]
    results = [executor(batch) for batch in batches]
    torch.manual_seed(SEED)
    for result, batch in zip(results, batches, strict=True):
        assert torch.equal(result, torch.cat([Looping()(part) for part in batch.split(2)]))
    assert torch.equal(random_state(executor), torch.get_rng_state())
    executor.destroy()
