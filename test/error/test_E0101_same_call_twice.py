"""E0101: forward does something else when it is called again: it keeps state that programs do not have.

Where the state lies does not matter. Values that are prepared once and are the same in all calls do not count.
"""

import collections
import functools
import random
import re

import abele
import numpy as np
import poptorch
import pytest
import torch

X = torch.tensor([[1.0, 2.0], [3.0, 4.0]])


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.function, self.count, self.kept, self.items = function, 0, None, {}

    def forward(self, x):
        return self.function(self, self.linear(x))


class Counter:
    count = 0

    def next(self):
        type(self).count += 1
        return self.count


def tick(module):
    module.count += 1
    return module.count


def counted(function):
    calls = []

    @functools.wraps(function)
    def call(self, x):
        calls.append(None)
        return function(self, x) * len(calls)

    return call


def keeps_tuple(self, x):
    before = self.kept or (torch.zeros(2, 2), 0)
    self.kept = (x.detach(), before[1] + 1)
    return x + before[0]


def makes_buffer(self, x):
    if not hasattr(self, "center"):
        self.center = x.mean(0)
    return x - self.center


def makes_layer(self, x):
    if self.kept is None:
        self.kept = torch.nn.Linear(2, 2)
    return self.kept(x)


def scales_once(self, x):
    if self.count == 0:
        with torch.no_grad():
            self.linear.weight.mul_(0.5)
    self.count = 1
    return x


queue, numbers, dice, rng = collections.deque([1.0]), {"n": 1}, random.Random(1), np.random.default_rng(2)


def rotates(self, x):
    queue.append(queue.popleft() + 1)
    return x * queue[0]


def in_dictionary(self, x):
    numbers["n"] += 1
    return x * torch.tensor(float(numbers["n"]))


# found: in the message, the operator that differs and both values.
KEEPS = {
    "attribute, by a helper": (
        lambda self, x: x * tick(self),
        r"at +aten::mul.*found +1 in the first call, 2 in the second",
    ),
    "attribute of a class": (lambda self, x: x + Counter().next(), "at +aten::add"),
    "behind a decorator": (counted(lambda self, x: x), "at +aten::mul"),
    "deque": (rotates, "at +aten::mul"),
    "dictionary": (in_dictionary, r"at +aten::mul.*\n.*f32\[\] \[2\] in the first call, f32\[\] \[3\] in the second"),
    "tuple": (keeps_tuple, "at +aten::add"),
    "buffer made of an input": (makes_buffer, "at +aten::mean"),
    "layer made in forward": (makes_layer, "at +aten::"),
    "weights that are scaled once": (scales_once, "at +aten::mul_"),
    "branch": (lambda self, x: x.relu() if tick(self) % 2 else x.tanh(), "aten::relu in the first call.*aten::tanh"),
    "shape": (lambda self, x: x.repeat(tick(self), 1), "at +aten::repeat"),
    "result without inputs": (
        lambda self, x: (x, torch.tensor(tick(self))),
        r"result 1 \[1\] in the first.*result 1 \[2\]",
    ),
    "generator of Python": (lambda self, x: x * dice.random(), "at +aten::mul"),
    "generator of numpy": (lambda self, x: x * torch.from_numpy(rng.normal(size=2)).float(), "at +aten::mul"),
    "generator without a seed": (lambda self, x: x * random.Random().random(), "at +aten::mul"),
    "numbers of the system": (lambda self, x: x * random.SystemRandom().random(), "at +aten::mul"),
}


@pytest.mark.parametrize("function, found", KEEPS.values(), ids=KEEPS.keys())
def test_state_is_refused_with_the_line(function, found):
    with pytest.raises(abele.Error, match="E0101 data-dependent: forward does something else") as raised:
        abele.inferenceModel(Calls(function))(X)
    text = str(raised.value)
    assert re.search(found, text, re.DOTALL), text
    assert "test_E0101_same_call_twice.py:" in text or "result 1" in text


def caches(self, x):
    if "mask" not in self.items:
        self.items["mask"] = torch.arange(4.0).view(2, 2).t()
        self.items["rows"] = {"first": torch.ones(2, 2).cumsum(0)[0]}
    return x * self.items["mask"] + self.items["rows"]["first"]


def logs(self, x):
    self.count += 1
    self.items[self.count] = (x.shape, "a line")
    return x * 2


def seeds(self, x):
    np.random.seed(3)
    random.seed(4)
    return x * float(np.random.rand()) + random.randint(1, 9)


def draws(self, x):
    return torch.nn.functional.dropout(x, 0.5, True) + torch.rand(2)


def writes(self, x):
    out = torch.zeros(2, 2)
    out[0] = x[1]
    made = torch.empty(2, 2)
    made.fill_(2.0)
    return out * made


def writes_in_parts(allocate):
    def forward(self, x):
        self.count += 1
        torch.full((2, 64), float(self.count))  # leaves another number in the memory that is reserved next
        made = allocate(x)
        made[0] = 1
        made[1] = x.flatten().repeat(16)
        return made

    return forward


ALLOCATES = {
    "empty": lambda x: torch.empty(2, 64),
    "empty_like": lambda x: torch.empty_like(x.repeat(1, 32)),
    "empty_strided": lambda x: torch.empty_strided((2, 64), (1, 2)),
    "new_empty": lambda x: x.new_empty(2, 64),
    "new_empty_strided": lambda x: x.new_empty_strided((2, 64), (64, 1)),
    "resize_": lambda x: torch.empty(0).resize_(2, 64),
    "a tensor of sizes": lambda x: torch.Tensor(2, 64),
}
SAME = {
    "constants made once": caches,
    "a counter that no number depends on": logs,
    "numbers of a seed in forward": seeds,
    "random numbers of torch": draws,
    "memory that forward makes": writes,
    **{f"memory of {name} that is written in parts": writes_in_parts(each) for name, each in ALLOCATES.items()},
    "a seeded generator": lambda self, x: x * random.Random(7).random() + np.random.default_rng(8).random(),
}


@pytest.mark.parametrize("function", SAME.values(), ids=SAME.keys())
def test_what_is_the_same_in_every_call_is_captured(function, capfd):
    net = Calls(function)
    model = abele.inferenceModel(net, abele.Options().randomSeed(5))
    torch.manual_seed(5)
    for x in (X, X * 2):
        assert torch.equal(model(x), net(x).detach())
    assert "something else" not in capfd.readouterr().err


@pytest.mark.parametrize("training", [False, True])
def test_buffers_are_as_before_in_the_second_call(training):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls.add_(1)
            return torch.nn.functional.mse_loss(self.norm(x) * self.calls, x)

    ours, theirs = Net(), Net()
    if training:
        model = abele.trainingModel(ours, optimizer=torch.optim.SGD(ours.parameters(), lr=0.1))
        optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    else:
        model = abele.inferenceModel(ours)
    for _ in range(3):
        loss = theirs(X)
        assert torch.equal(model(X), loss.detach())
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, module):
        ctx.module = module
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * tick(ctx.module), None


def hooks(self, x):
    x = x * 2
    x.register_hook(lambda gradient: gradient * tick(self))
    return x


def unpacks(self, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, lambda saved: saved * tick(self)):
        return x.square()


def without_gradient(self, x):
    with torch.set_grad_enabled(tick(self) == 1):
        y = x.tanh()
    return x + y


def in_slice(self, x):
    y = torch.zeros(2, 2)
    y[0] = Scale.apply(x[0], self)
    return y + x


# Forward is the same in both calls, and backward is not.
BACKWARDS = {
    "detached": lambda self, x: self.linear.bias * (x if tick(self) == 1 else x.detach()),
    "without gradient": without_gradient,
    "function of the program": lambda self, x: Scale.apply(x, self),
    "function of the program in a slice": in_slice,
    "hook of a tensor": hooks,
    "hooks of saved tensors": unpacks,
}


@pytest.mark.parametrize("function", BACKWARDS.values(), ids=BACKWARDS.keys())
def test_state_of_backward_is_refused(function):
    class Trained(Calls):
        def forward(self, x):
            return abele.identity_loss(super().forward(x), reduction="sum")

    net = Trained(function)
    model = abele.trainingModel(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.raises(abele.Error, match="E0101 data-dependent: forward does something else") as raised:
        model(X)
    assert re.search("at +(aten|abele)", str(raised.value)), str(raised.value)


def test_poptorch_keeps_what_the_first_call_did(capfd):
    model = poptorch.inferenceModel(Calls(lambda self, x: x * tick(self)))
    model(X)
    assert "something else" not in capfd.readouterr().err
    options = poptorch.Options()
    options.checkCapture(True)
    poptorch.inferenceModel(Calls(lambda self, x: x * tick(self)), options)(X)
    text = capfd.readouterr().err
    assert "forward does something else" in text and "test_E0101_same_call_twice.py:" in text


def test_the_check_can_be_left_out():
    options = abele.Options()
    options.checkCapture(False)
    net = Calls(lambda self, x: x * tick(self))
    abele.inferenceModel(net, options)(X)
    assert net.count == 1
