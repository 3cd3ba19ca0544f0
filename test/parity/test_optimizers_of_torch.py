"""Weights after a few steps are eager's, bit for bit, for every way in which torch runs an optimizer, or the program is
refused by name."""

import abele
import poptorch
import pytest
import torch

STEPS = 4


class Net(torch.nn.Module):
    def __init__(self, dtype=torch.float32):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(5, 33, dtype=dtype)
        self.second = torch.nn.Linear(33, 3, dtype=dtype)

    def forward(self, x, target):
        out = self.second(torch.tanh(self.first(x))) - target
        return (out * out.conj()).real.mean()


class Marked(Net):
    def forward(self, x, target):
        return poptorch.identity_loss(super().forward(x, target), reduction="none")


def batches(dtype, rows=4):
    made = torch.Generator().manual_seed(5)
    return [
        (torch.randn(rows, 5, generator=made, dtype=dtype), torch.randn(rows, 3, generator=made, dtype=dtype))
        for _ in range(STEPS)
    ]


def require_same(make, change=None, dtype=torch.float32):
    """Trains with what make(parameters) returns, here and in eager; change(optimizer, step) runs before each step."""
    eager, compiled = Net(dtype), Marked(dtype)
    own, given = make(eager.parameters()), make(compiled.parameters())
    executor = abele.trainingModel(compiled, optimizer=given)
    for step, (x, target) in enumerate(batches(dtype)):
        if change is not None:
            change(own, step)
            change(given, step)
            executor.setOptimizer(given)
        own.zero_grad()
        eager(x, target).backward()
        own.step()
        executor(x, target)
        for (name, ours), theirs in zip(compiled.named_parameters(), eager.parameters(), strict=True):
            assert torch.equal(ours.detach(), theirs.detach()), (step, name)
    executor.copyWeightsToHost()
    require_same_state(given, own)


def require_same_state(found, expected):
    """state_dict() is torch's own."""
    found, expected = found.state_dict()["state"], expected.state_dict()["state"]
    expected = {key: {k: v for k, v in state.items() if v is not None} for key, state in expected.items()}
    expected = {key: state for key, state in expected.items() if state}
    assert found.keys() == expected.keys()
    for key, state in expected.items():
        assert found[key].keys() == state.keys()
        assert all(torch.equal(torch.as_tensor(found[key][name]), torch.as_tensor(state[name])) for name in state)


SGD = [
    {"lr": 0.1},
    {"lr": 0.1, "dampening": 0.4},
    {"lr": 0.1, "momentum": 0.9},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.4},
    {"lr": 0.1, "momentum": 0.9, "dampening": 0.4, "weight_decay": 0.1, "maximize": True},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
]
OTHERS = [
    (torch.optim.Adam, {"lr": 0.03}),
    (torch.optim.Adam, {"lr": 0.03, "weight_decay": 0.1, "maximize": True}),
    (torch.optim.Adam, {"lr": 0.03, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    (torch.optim.AdamW, {"lr": 0.03, "weight_decay": 0.1, "betas": (0.3, 0.7)}),
    (torch.optim.RMSprop, {"lr": 0.03, "weight_decay": 0.1}),
    (torch.optim.RMSprop, {"lr": 0.03, "momentum": 0.9, "centered": True}),
]
ALL = [(torch.optim.SGD, each) for each in SGD] + OTHERS
RUN = [{}, {"foreach": True}, {"foreach": False}, {"fused": True}]


def text(value):
    if isinstance(value, dict):
        return ",".join(f"{key}={item}" for key, item in value.items()) or "default"
    return getattr(value, "__name__", None)


@pytest.mark.parametrize("how", RUN, ids=text)
@pytest.mark.parametrize(("kind", "values"), ALL, ids=text)
def test_every_implementation(kind, values, how):
    if kind is torch.optim.RMSprop and "fused" in how:
        pytest.skip("torch has none")
    require_same(lambda parameters: kind(parameters, **values, **how))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kind", "values"), ALL, ids=text)
def test_every_element_type(kind, values, dtype):
    if dtype == torch.bfloat16:
        values = {key: value for key, value in values.items() if key != "maximize"}
    require_same(lambda parameters: kind(parameters, **values), dtype=dtype)


@pytest.mark.parametrize(
    "kind", [poptorch.optim.Adam, poptorch.optim.AdamW, poptorch.optim.RMSprop, poptorch.optim.SGD]
)
def test_complex_parameters_of_poptorch_optimizers(kind):
    eager, compiled = Net(torch.complex64), Marked(torch.complex64)
    own = getattr(torch.optim, kind.__name__)(eager.parameters(), lr=0.03)
    executor = abele.trainingModel(compiled, optimizer=kind(compiled.parameters(), lr=0.03))
    for x, target in batches(torch.complex64):
        own.zero_grad()
        eager(x, target).backward()
        own.step()
        executor(x, target)
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.detach(), theirs.detach())


def test_lamb_of_complex_parameters_is_refused():
    compiled = Marked(torch.complex64)
    executor = abele.trainingModel(compiled, optimizer=poptorch.optim.LAMB(compiled.parameters()))
    with pytest.raises(abele.Error, match="E0706.*LAMB is not defined for complex"):
        executor(*batches(torch.complex64)[0])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_a_learning_rate_that_is_a_tensor(kind):
    require_same(lambda parameters: kind(parameters, lr=torch.tensor(0.03), weight_decay=0.1))


def set_to(name, values):
    def change(optimizer, step):
        for group in optimizer.param_groups:
            group[name] = values[step]

    return change


def test_dampening_that_changes():
    require_same(
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.3),
        set_to("dampening", [0.3, 0.3, 0.7, 0.1]),
    )


@pytest.mark.parametrize("dampening", [0.0, 0.3])
def test_momentum_that_begins_later(dampening):
    def make(parameters):
        optimizer = poptorch.optim.SGD(parameters, lr=0.1, momentum=0.0, dampening=dampening)
        optimizer.variable_attrs.markAsVariable("momentum")
        return optimizer

    eager, compiled = Net(), Marked()
    own, given = torch.optim.SGD(eager.parameters(), lr=0.1, dampening=dampening), make(compiled.parameters())
    executor = abele.trainingModel(compiled, optimizer=given)
    for momentum, (x, target) in zip([0.0, 0.0, 0.9, 0.9], batches(torch.float32), strict=True):
        own.param_groups[0]["momentum"] = given.param_groups[0]["momentum"] = momentum
        executor.setOptimizer(given)
        own.zero_grad()
        eager(x, target).backward()
        own.step()
        executor(x, target)
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        assert torch.equal(ours.detach(), theirs.detach())


@pytest.mark.parametrize(
    ("kind", "flag"),
    [
        (torch.optim.Adam, "capturable"),
        (torch.optim.AdamW, "differentiable"),
        (torch.optim.SGD, "differentiable"),
        (torch.optim.RMSprop, "capturable"),
    ],
    ids=text,
)
def test_what_is_refused_is_named(kind, flag):
    model = Marked()
    optimizer = kind(model.parameters(), lr=0.1, **{flag: True})
    with pytest.raises(abele.Error, match=f"E0706.*{flag}=True"):
        abele.trainingModel(model, optimizer=optimizer)
    poptorch.trainingModel(model, optimizer=optimizer)(*batches(torch.float32)[0])  # PopTorch ignores it


def test_poptorch_keeps_its_own_rule_of_dampening():
    model = Marked()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    reference = Net()
    x, target = batches(torch.float32)[0]
    reference(x, target).backward()
    executor = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.5, dampening=0.5))
    executor(x, target)
    for ours, start, theirs in zip(model.parameters(), before, reference.parameters(), strict=True):
        assert torch.equal(ours.detach(), start - 0.25 * theirs.grad)


@pytest.mark.parametrize(
    "make, changes",
    [
        (lambda p: torch.optim.Adam(p), {"betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
        (lambda p: torch.optim.AdamW(p), {"betas": (0.85, 0.9), "weight_decay": 0.2, "lr": 0.1}),
        (lambda p: torch.optim.SGD(p, momentum=0.9), {"momentum": 0.5, "weight_decay": 0.1, "nesterov": True}),
        (lambda p: torch.optim.RMSprop(p), {"alpha": 0.9, "eps": 1e-5, "weight_decay": 0.01}),
    ],
)
def test_every_number_may_change(make, changes):
    def change(optimizer, step):
        if step == 2:
            optimizer.param_groups[0].update(changes)

    require_same(make, change)


def test_schedulers_that_cycle_betas():
    schedulers = {}

    def change(optimizer, step):
        if step == 0:
            schedulers[optimizer] = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)
        else:
            schedulers[optimizer].step()

    require_same(lambda parameters: torch.optim.AdamW(parameters, lr=0.01), change)


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS + 1)


def cyclic(optimizer):
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, step_size_up=2)


@pytest.mark.parametrize("schedule", [one_cycle, cyclic])
@pytest.mark.parametrize("package", [torch, poptorch], ids=["torch", "poptorch"])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW"])
def test_schedulers_that_cycle_momentum_in_poptorch(kind, package, schedule):
    """betas are constants of PopTorch's, but where a scheduler says that it changes them."""
    eager, compiled = Net(), Marked()
    own = getattr(torch.optim, kind)(eager.parameters(), lr=0.01)
    given = getattr(package.optim, kind)(compiled.parameters(), lr=0.01)
    executor = poptorch.trainingModel(compiled, optimizer=given)
    schedules = [schedule(own), schedule(given)]
    for x, target in batches(torch.float32):
        executor.setOptimizer(given)
        executor(x, target)
        own.zero_grad()
        eager(x, target).backward()
        own.step()
        for each in schedules:
            each.step()
        for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
            assert torch.equal(ours.detach(), theirs.detach())
