"""What a program holds as it was at compile time: changes of Python's side are named."""

import contextlib
import ctypes
import functools
import re
import types

import abele
import poptorch
import pytest
import torch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
scale = 2.0
table = torch.ones(2)
factors, limits = {"scale": 2.0}, types.SimpleNamespace(lowest=-9.0)


def scaled(x):
    return x * scale


def aroundNumbers():
    numbers = [2.0]

    def reads(self, x):
        return x.clamp(min=limits.lowest) * factors["scale"] * numbers[0]

    reads.numbers = numbers
    return reads


class Net(torch.nn.Module):
    def __init__(self, function=None):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.drop = torch.nn.Dropout(0.0)
        self.inner = Inner(function)

    def forward(self, x):
        return self.inner(self.drop(self.linear(x)))


class Inner(torch.nn.Module):
    enabled = True

    def __init__(self, function):
        super().__init__()
        self.register_buffer("offset", torch.ones(2))
        self.function = function or (lambda self, x: x)
        self.flag, self.count, self.kept, self.unused = True, 0, None, 0
        self.history, self.constants = [], {}
        self.plain = torch.ones(2)
        self.config, self.options = types.SimpleNamespace(bias=0.0, unused=0), {"scale": 1.0}
        self.active, self.sizes = ["first"], (2, 3)
        self.dice = torch.Generator()

    def forward(self, x):
        return self.finish(self.function(self, x) * self.options["scale"] + self.offset + self.config.bias)

    @property
    def adapters(self):
        return self.active if self.enabled else []

    def finish(self, x):
        if self.dice is None:
            return x
        if "first" in self.adapters and self.sizes[0] == 2:
            x = x + 1
        return x * self.plain if self.flag else scaled(x) * table


@pytest.fixture
def warnings(capfd):
    def read():
        return [line for line in capfd.readouterr().err.splitlines() if "[warning]" in line]

    return read


def hook(module, *arguments):
    return None


def exchange(name, value, holder=lambda net: net.inner):
    return lambda net: setattr(holder(net), name, value)


CHANGES = {
    "tensor": (
        exchange("weight", torch.nn.Parameter(torch.ones(2, 2)), lambda net: net.linear),
        "linear.weight is another",
    ),
    "buffer": (exchange("offset", torch.zeros(2)), "inner.offset is another tensor now.*copyWeightsToDevice"),
    "no bias": (exchange("bias", None, lambda net: net.linear), "linear.bias is gone"),
    "module": (exchange("drop", torch.nn.Identity(), lambda net: net), "drop is another module now"),
    "hook": (lambda net: net.linear.register_forward_hook(hook), "forward hooks of linear were 0 and are 1"),
    "pre-hook": (lambda net: net.register_forward_pre_hook(hook), "forward pre-hooks of the model were 0 and are 1"),
    "number of torch": (exchange("p", 0.5, lambda net: net.drop), "drop.p was 0.0 when it was compiled, and is 0.5"),
    "flag": (exchange("flag", False), "inner.flag was True when it was compiled, and is False now"),
    "plain tensor": (exchange("plain", torch.zeros(2)), "inner.plain is another tensor"),
    "written tensor": (lambda net: net.inner.plain.mul_(2), "inner.plain was written since"),
    "global": (lambda net: globals().update(scale=3.0), r"scale \(read by scaled\) was 2.0"),
    "written global": (lambda net: table.mul_(2), r"table \(read by Inner.finish\) was written"),
    "dictionary": (lambda net: net.inner.options.update(scale=3.0), r"inner.options\['scale'\] was 1.0"),
    "object": (exchange("bias", 1.0, lambda net: net.inner.config), "inner.config.bias was 0.0 .* is 1.0 now"),
    "generator": (exchange("dice", torch.Generator()), "inner.dice is another object now"),
    "function": (exchange("function", scaled), "inner.function is another object now"),
    "list read by a property": (exchange("active", ["second"]), r"inner.active was \['first'\] .* is \['second'\] now"),
    "item of a list": (lambda net: net.inner.active.__setitem__(0, "second"), "inner.active was"),
    "items of a tuple": (exchange("sizes", (1, 3)), r"inner.sizes was \(2, 3\) .* is \(1, 3\) now"),
    "attribute of a class": (exchange("enabled", False), "inner.enabled was True .* is False now"),
    "parametrization": (
        lambda net: torch.nn.utils.parametrize.register_parametrization(net.linear, "weight", torch.nn.Identity()),
        "parameters of linear were 2 and are 1 now",
    ),
}


@pytest.mark.parametrize(
    "change, found",
    [
        (lambda reads: factors.update(scale=3.0), r"factors\['scale'\] \(read by .*reads\) was 2.0"),
        (lambda reads: setattr(limits, "lowest", 0.0), r"limits.lowest \(read by .*reads\) was -9.0"),
        (lambda reads: reads.numbers.__setitem__(0, 3.0), r"numbers \(read by .*reads\) was \[2.0\]"),
    ],
)
def test_containers_and_objects_around_functions(change, found, warnings, request):
    request.addfinalizer(lambda: (factors.update(scale=2.0), setattr(limits, "lowest", -9.0)))
    reads = aroundNumbers()
    model = poptorch.inferenceModel(Net(reads))
    first = model(X)
    assert not warnings()
    change(reads)
    assert torch.equal(model(X), first)
    (line,) = warnings()
    assert re.search(found, line), line


@pytest.mark.parametrize("change, found", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_is_named_once(change, found, warnings, request):
    request.addfinalizer(lambda: globals().update(scale=2.0))
    net = Net()
    model = poptorch.inferenceModel(net)
    first = model(X)
    assert not warnings()
    change(model.model)
    assert torch.equal(model(X), first)
    (*others, last) = warnings() or [""]
    pattern = re.compile(found)
    assert any(pattern.search(line) for line in (*others, last)), (others, last)
    model(X)
    assert not warnings()


def test_hooks_of_all_modules(warnings):
    model = poptorch.inferenceModel(Net())
    model(X)
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        model(X)
    finally:
        handle.remove()
    assert "forward hooks of all modules were 0 and are 1 now" in "".join(warnings())


def test_what_no_program_reads_may_change(warnings):
    net = Net()
    model = poptorch.inferenceModel(net)
    model(X)
    inner = model.model.inner
    inner.unused, inner.other, inner.flag = 5, torch.ones(2), True
    inner.config.unused = 7
    inner.history.append(1)
    model.model.eval()
    net.linear.weight.requires_grad_(False)
    model(X)
    assert not warnings()


def test_exchanged_weights_that_were_uploaded(warnings):
    net = Net()
    model = poptorch.inferenceModel(net)
    model(X)
    net.linear.weight = torch.nn.Parameter(torch.ones(2, 2))
    model.copyWeightsToDevice()
    assert torch.equal(model(X), net(X)) and not warnings()


SETTINGS = {
    "autocast": (
        lambda: torch.autocast("cpu", torch.bfloat16),
        "autocast of the CPU was False .* is torch.bfloat16 now",
    ),
    "default dtype": (lambda: changed(torch.set_default_dtype, torch.float64, torch.float32), "torch.float64 now"),
    "deterministic": (lambda: changed(torch.use_deterministic_algorithms, True, False), "algorithms.* is True now"),
    "precision of products": (
        lambda: changed(functools.partial(setattr, torch.backends.mkldnn.matmul, "fp32_precision"), "bf16", "none"),
        "mkldnn.matmul.fp32_precision was none .* is bf16 now",
    ),
    "mkldnn": (lambda: torch.backends.mkldnn.flags(enabled=False), "mkldnn.enabled was True .* is False now"),
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


def count(self, x):
    self.count += 1
    return x * self.count


def countInDictionary(self, x):
    self.options["scale"] += 1
    return x


def keep(self, x):
    self.kept = x * 2 if self.kept is None else self.kept
    return self.kept


def collect(self, x):
    self.history.append(x)
    return sum(self.history)


def collectConstants(self, x):
    self.constants.setdefault("a", torch.ones(2, device=x.device))
    self.plain = torch.ones(2, device=x.device)
    return x * self.constants["a"]


@pytest.mark.parametrize(
    "function, found",
    [
        (countInDictionary, r"forward changes inner.options\['scale'\] \(1.0, then 2.0\)"),
        (count, "forward changes inner.count \\(0, then 1\\)"),
        (keep, "forward keeps a tensor in inner.kept"),
        (collect, "forward keeps a tensor in inner.history"),
        (collectConstants, None),
    ],
)
def test_state_that_forward_keeps_in_python(function, found, warnings):
    model = abele.inferenceModel(Net(function))
    model(X)
    lines = warnings()
    assert len(lines) == (0 if found is None else 1), lines
    assert found is None or re.search(found, lines[0])
    model(X)
    assert not warnings()


def test_parameters_that_are_frozen_after_compilation(warnings):
    class Trained(Net):
        def forward(self, x):
            return poptorch.identity_loss(super().forward(x), reduction="sum")

    net = Trained()
    model = poptorch.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    model(X)
    model(X)
    assert not warnings()
    net.linear.weight.register_hook(lambda gradient: gradient * 2)
    model(X)
    assert any("register_hook() was called on a parameter" in line for line in warnings())
    net.linear.requires_grad_(False)
    model(X)
    assert any("requires_grad of 2 parameters is another one now" in line for line in warnings())


POINTERS = {
    "numpy": lambda w: w.numpy(),
    "numpy, part": lambda w: {"rows": [w.numpy()[::-1, 1:]]},
    "memoryview": lambda w: memoryview(w.numpy()),
    "pointer": lambda w: ctypes.cast(w.data_ptr(), ctypes.POINTER(ctypes.c_float)),
    "array of ctypes": lambda w: (ctypes.c_float * 4).from_address(w.data_ptr()),
}


def first(taken):
    taken = taken["rows"][0] if isinstance(taken, dict) else taken
    return float(taken[0, 0] if hasattr(taken, "ndim") else taken[0])


@pytest.mark.parametrize("take", POINTERS.values(), ids=POINTERS.keys())
def test_numbers_in_the_memory_of_weights_that_forward_reads_past_torch(take, warnings):
    net = Net(lambda self, x: x * first(self.taken))
    net.inner.taken = take(net.linear.weight.detach())
    abele.inferenceModel(net)(X)
    assert re.search(r"inner.taken.* lies in the memory of linear.weight: numbers that forward", "".join(warnings()))
    net.inner.taken = take(net.linear.weight.detach().clone())
    abele.inferenceModel(net)(X)
    assert not warnings()


def test_arrays_that_code_of_the_model_names(warnings):
    weight = torch.nn.Parameter(torch.ones(2, 2))
    array = weight.detach().numpy()

    class Closes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = weight

        def forward(self, x):
            return x @ self.weight * float(array[0, 0])

    abele.inferenceModel(Closes())(X)
    assert any("array lies in the memory of weight" in line for line in warnings())


def test_classes_of_code_without_a_name():
    names = {"torch": torch}
    exec("class Twice(torch.nn.Module):\n    def forward(self, x):\n        return x * 2", names)
    assert torch.equal(poptorch.inferenceModel(names["Twice"]())(torch.ones(2)), torch.full((2,), 2.0))
