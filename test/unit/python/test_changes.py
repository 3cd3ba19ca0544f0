"""Changes of a module or of torch that have no effect on a compiled program: each is named once."""

import contextlib
import functools
import gc
import inspect
import re

import abele
import poptorch
import pytest
import torch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.drop = torch.nn.Dropout(0.0)
        self.register_buffer("offset", torch.ones(2))
        self.beta, self.teacher = 1.0, [torch.nn.Linear(2, 2).requires_grad_(False)]

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher[0](x)
        return torch.nn.functional.mse_loss(self.drop(self.linear(x)) * self.beta + self.offset, target)


@pytest.fixture
def warnings(capfd):
    def read():
        return [line for line in capfd.readouterr().err.splitlines() if "[warning]" in line]

    return read


def hook(module, *arguments):
    return None


def turn(net):
    net.linear.weight.data = net.linear.weight.data.t().contiguous().t()


def update_teacher(net):
    with torch.no_grad():
        net.teacher[0].weight.mul_(0.5)


CHANGES = {
    "tensor": (
        lambda net: setattr(net.linear, "weight", torch.nn.Parameter(torch.ones(2, 2))),
        "linear.weight is another tensor now.*copyWeightsToDevice",
    ),
    "strides": (turn, "the strides of linear.weight are others now"),
    "no bias": (lambda net: setattr(net.linear, "bias", None), "1 of them are not there now"),
    "module": (lambda net: setattr(net, "drop", torch.nn.Identity()), "the module drop was Dropout.* and is Identity"),
    "hook": (lambda net: net.linear.register_forward_hook(hook), "the module linear was .*no hooks.* 1 hooks"),
    "pre-hook": (lambda net: net.register_forward_pre_hook(hook), "the module was Net.*no hooks.* 1 hooks"),
    "number of torch": (lambda net: setattr(net.drop, "p", 0.5), "the module drop was .*p=0.0.* and is .*p=0.5"),
    "attribute of the root": (lambda net: setattr(net, "beta", 2.0), "the module was .*beta=1.0.* and is .*beta=2.0"),
    "training": (lambda net: net.drop.eval(), "the module drop was .*training=True.* and is .*training=False"),
    "a teacher": (update_teacher, "first used at test_changes.py.* was written since"),
}
TRAINED = {
    "frozen": (lambda net: net.linear.requires_grad_(False), r"requires_grad\(\) of 2 parameters is another one now"),
    "hook of a parameter": (
        lambda net: net.linear.weight.register_hook(lambda gradient: gradient * 2),
        "the module linear was .*no hooks.* 1 hooks",
    ),
}


def _model(package, net, training):
    if not training:
        return package.inferenceModel(net)
    return package.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.0))


@pytest.mark.parametrize("package", [abele, poptorch], ids=["abele", "poptorch"])
@pytest.mark.parametrize(
    "change, found, training",
    [(*row, False) for row in CHANGES.values()] + [(*row, True) for row in TRAINED.values()],
    ids=[*CHANGES, *TRAINED],
)
def test_a_change_is_named_once(change, found, training, package, warnings):
    net = Net()
    model = _model(package, net, training)
    first = model(X)
    model(X)
    assert not warnings()
    traced = net if training else model.model  # poptorch traces a copy
    change(traced)
    assert torch.equal(model(X), first)
    lines = warnings()
    assert any(re.search(found, line) for line in lines), lines
    change(traced)
    model(X)
    assert not any(re.search(found, line) for line in warnings())


def test_what_is_no_change(warnings):
    net = Net()
    model = abele.inferenceModel(net)
    model(X)
    net.other = torch.ones(2)
    net.requires_grad_(False)
    net.eval().train()
    model(X)
    assert not warnings()


def test_exchanged_weights_that_were_uploaded(warnings):
    net = Net()
    model = abele.inferenceModel(net)
    model(X)
    net.linear.weight = torch.nn.Parameter(torch.ones(2, 2))
    model.copyWeightsToDevice()
    assert torch.equal(model(X), net(X).detach()) and not warnings()


@pytest.mark.parametrize("training, is_trained", [(False, False), (False, True), (True, False)])
def test_an_attribute_of_the_root_is_seen_by_the_next_program(training, is_trained):
    net = Net()
    other = _model(abele, net, training=True) if is_trained else None  # it makes a class of its own of the module's
    model = _model(abele, net, training)
    model(X)
    net.beta = 2.0
    model.destroy()
    assert torch.equal(model(X), net(X).detach())
    assert other is None or not other.isCompiled()


def test_modules_that_all_change_are_counted(warnings):
    net = torch.nn.Sequential(*[torch.nn.Dropout(0.0) for _ in range(9)])
    model = abele.inferenceModel(net)
    model(X)
    net.eval()
    model(X), model(X)
    (*named, counted) = warnings()
    assert len(named) == 3 and "6 other modules are not what they were" in counted


def test_an_optimizer_that_has_no_state_yet(warnings):
    net = Net()
    model = abele.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    model.setOptimizer(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    model(X)
    assert not warnings()
    for _ in range(2):
        model.setOptimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
        model(X)
    (line,) = warnings()
    assert "setOptimizer() was given an optimizer that has made no step" in line


def test_an_optimizer_without_state_follows_another(warnings):
    net = Net()
    model = abele.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    model(X)
    model.setOptimizer(torch.optim.SGD(net.parameters(), lr=0.05))
    model(X)
    assert not warnings()


SETTINGS = {
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), "autocast of the CPU was off .* is BFloat16 now"),
    "default dtype": (
        lambda: changed(torch.set_default_dtype, torch.float64, torch.float32),
        r"torch.get_default_dtype\(\) was float .* is double now",
    ),
    "deterministic": (
        lambda: changed(torch.use_deterministic_algorithms, True, False),
        r"torch.are_deterministic_algorithms_enabled\(\) was false .* is true now",
    ),
    "precision of products": (
        lambda: changed(functools.partial(setattr, torch.backends.mkldnn.matmul, "fp32_precision"), "bf16", "none"),
        "torch.backends.mkldnn.matmul.fp32_precision was .* now",
    ),
    "mkldnn": (
        lambda: torch.backends.mkldnn.flags(enabled=False),
        "torch.backends.mkldnn.enabled was true .* false now",
    ),
}


@contextlib.contextmanager
def changed(setting, value, before):
    setting(value)
    try:
        yield
    finally:
        setting(before)


@pytest.mark.parametrize("setting, found", SETTINGS.values(), ids=SETTINGS.keys())
def test_settings_of_torch_that_change(setting, found, warnings):
    model = poptorch.inferenceModel(Net())
    model(X)
    with setting():
        model(X)
        assert any(re.search(found, line) for line in warnings())
        model(X)
        assert not warnings()


class Keeps(torch.nn.Module):
    def forward(self, x):
        self.maps = {"attention": x.softmax(-1)}
        self.hidden = [x.tanh()]
        return x * 2


@pytest.mark.parametrize("package", [abele, poptorch], ids=["abele", "poptorch"])
def test_what_forward_leaves_in_attributes_is_named_once(package, warnings):
    model = package.inferenceModel(torch.nn.Sequential(Keeps(), Keeps()))
    model(X)
    (line,) = warnings()
    first = inspect.getsourcelines(Keeps.forward)[1] + 1
    places = f"test_changes.py:{first} (0.maps['attention']), and at test_changes.py:{first + 1} (0.hidden[0]): only"
    assert f"the program keeps a tensor that forward makes at {places}" in line
    model(X)
    assert not warnings()


class LeavesGarbage(torch.nn.Module):
    """The function refers to itself, so its tensor lives until Python looks for garbage."""

    def forward(self, x):
        scaled = x * 3

        def power(n):
            return scaled if n == 1 else scaled * power(n - 1)

        return power(2)


def test_garbage_is_not_named(warnings):
    gc.disable()
    try:
        poptorch.inferenceModel(LeavesGarbage())(X)
    finally:
        gc.enable()
    assert not warnings()


class ChecksPoints(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        y = torch.utils.checkpoint.checkpoint(self.linear, x.requires_grad_(), use_reentrant=True)
        return poptorch.identity_loss(y.sum(), "none")


def test_gradients_of_arguments_are_not_named(warnings):
    net = ChecksPoints()
    poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))(X.clone())
    assert not warnings()


class KeepsForOthers(torch.nn.Module):
    """Autograd keeps the square root for the gradient of what stays in the list, and the program does not."""

    kept = []

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x):
        root = self.linear(x).square().sqrt()
        self.kept.append(root.exp())
        self.scaled = root * 3
        return poptorch.identity_loss(root.sum(), "none")


def test_what_autograd_keeps_is_not_named(warnings):
    net = KeepsForOthers()
    model = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    model(X)
    (line,) = [one for one in warnings() if "the program keeps" in one]
    at = inspect.getsourcelines(KeepsForOthers.forward)[1] + 3
    assert f"forward makes at test_changes.py:{at} (scaled): only" in line
    KeepsForOthers.kept.clear()


def test_classes_of_code_without_a_name():
    names = {"torch": torch}
    exec("class Twice(torch.nn.Module):\n    def forward(self, x):\n        return x * 2", names)
    assert torch.equal(poptorch.inferenceModel(names["Twice"]())(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("limit", [2, abele.Options().recompile_limit])
def test_the_argument_that_changes_from_call_to_call(warnings, limit):
    options = abele.Options()
    options.checkCapture(False)
    options.recompileLimit(limit)
    model = abele.inferenceModel(Doubles(), options)
    for size in range(1, limit + 1):
        model(torch.ones(2), torch.ones(size))
    assert not warnings()
    for size in range(limit + 1, limit + 4):
        model(torch.ones(2), torch.ones(size))
    (line,) = warnings()
    assert f"recompile limit: the model has {limit + 1} programs" in line
    assert f"argument 1 has had {limit + 1} types and shapes, the last one f32[{limit + 1}]" in line


def test_the_number_that_changes_from_call_to_call(warnings):
    options = abele.Options()
    options.recompileLimit(2)
    model = abele.inferenceModel(Doubles(), options)
    for number in (1.5, 2.5, 3.5):
        model(torch.ones(2), number)
    (line,) = warnings()
    assert "the arguments were tuple[[float32[2], 1.5], {}], and are tuple[[float32[2], 3.5], {}];" in line


def test_keys_may_change_from_call_to_call(warnings):
    model = abele.inferenceModel(Total())
    for key in ("a", "b"):
        assert torch.equal(model({key: torch.ones(2), "c": torch.ones(2)}), torch.full((2,), 2.0))
    assert not warnings()


class Total(torch.nn.Module):
    def forward(self, named):
        return sum(named.values())


def test_the_place_of_a_change_behind_many_arguments(warnings):
    options = abele.Options()
    options.recompileLimit(1)
    model = abele.inferenceModel(Total(), options)
    for key in ("first", "other"):
        model({**{f"key_{index}": torch.ones(2) for index in range(30)}, key: torch.ones(2)})
    (line,) = warnings()
    assert "'first': float32[2]" in line and "'other': float32[2]" in line and "key_0" not in line


class Doubles(torch.nn.Module):
    def forward(self, x, y):
        return x * 2, y * 2
