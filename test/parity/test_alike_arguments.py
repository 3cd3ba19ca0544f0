"""Arguments that are equal, or whose texts are alike, and that forward can tell apart: eager's numbers for each."""

import collections
import contextlib
import dataclasses
import decimal
import enum
import functools
import re

import abele
import numpy
import poptorch
import pytest
import torch

FIVE, TWO = torch.tensor([5.0]), torch.tensor([2.0])


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, value):
        return x + self.function(value)


def sign(value):
    return torch.full((1,), 1.0 / abs(value) if value else torch.tensor(float(value)).reciprocal().item())


def first_of(value):
    return torch.tensor([float(next(iter(value)))])


def colliding(*numbers):
    """A set of these, filled in this order: the numbers have one place in its table."""
    made = set()
    for number in numbers:
        made.add(number)
    return made


def named_tuples():
    kinds = [collections.namedtuple("Batch", names) for names in ("x y", "y x")]
    return lambda v: v.x - v.y, *(kind(FIVE, TWO) for kind in kinds)


def containers(base):
    def kind(factor):
        class Scaled(base):
            def value(self):
                return factor * (self["x"] if base is dict else self[0])

        return Scaled

    return lambda v: v.value(), *(kind(factor)({"x": FIVE} if base is dict else [FIVE]) for factor in (1, 3))


def attributes(base):
    class Scaled(base):
        pass

    def make(factor):
        made = Scaled({"x": FIVE} if base is dict else [FIVE])
        made.factor = factor
        return made

    return lambda v: v.factor * (v["x"] if base is dict else v[0]), make(2), make(4)


def members(where):
    kinds = [enum.Enum("Kind", {"MEMBER": factor}) for factor in (1, 3)]
    return lambda v: FIVE * where(v).value, *({"k": kind.MEMBER} for kind in kinds)


class Text:
    def __init__(self, number):
        self.number = number

    def __repr__(self):
        return "Text"


def keys():
    return lambda v: next(iter(v.values())) * next(iter(v)).number, {Text(1): FIVE}, {Text(3): FIVE}


def items_of(kind):
    return lambda v: FIVE * next(iter(v)).number, kind([Text(1)]), kind([Text(3)])


@dataclasses.dataclass
class Settings:
    factor: float
    tensor: torch.Tensor


class Plain:
    def __init__(self, **values):
        vars(self).update(values)


def parsed():
    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield struct.x

        def reconstruct(self, original_structure, tensor_iterator):
            return type(original_structure)(next(tensor_iterator))

    def kind(factor):
        class Graph:
            def __init__(self, x):
                self.x = x

            def value(self):
                return factor * self.x

        poptorch.registerCustomArgParser(Graph, Parser())
        return Graph

    return lambda v: v.value(), kind(1)(FIVE), kind(3)(FIVE)


PATTERNS = [re.compile("a" * 300 + tail) for tail in "xy"]
# Name: makes (function of an argument, an argument, another one).
CASES = {
    "named tuples": named_tuples,
    "subclasses of dict": lambda: containers(dict),
    "subclasses of list": lambda: containers(list),
    "attributes of a dict": lambda: attributes(dict),
    "attributes of a list": lambda: attributes(list),
    "members of enumerations": lambda: members(lambda v: v["k"]),
    "keys": keys,
    "items of a tuple": lambda: items_of(tuple),
    "items of a set": lambda: items_of(set),
    "items of a frozen set": lambda: items_of(frozenset),
    "items of a deque": lambda: items_of(collections.deque),
    "tensors in a deque": lambda: (lambda v: v[0], collections.deque([FIVE]), collections.deque([TWO])),
    "parsed": parsed,
    "zeros": lambda: (sign, 0.0, -0.0),
    "zeros of numpy": lambda: (sign, numpy.float32(0), numpy.float32(-0.0)),
    "zeros in arrays": lambda: (lambda v: sign(v[0]), numpy.zeros(1), -numpy.zeros(1)),
    "zeros in tuples": lambda: (lambda v: sign(v[0]), (0.0,), (-0.0,)),
    "zeros in sets": lambda: (lambda v: sign(next(iter(v))), {0.0}, {-0.0}),
    "zeros of complex numbers": lambda: (lambda v: sign(v.imag), 0j, complex(0, -0.0)),
    "zeros of decimal numbers": lambda: (sign, decimal.Decimal("0"), decimal.Decimal("-0")),
    "orders of sets": lambda: (first_of, colliding(0, 8), colliding(8, 0)),
    "orders of frozen sets": lambda: (first_of, frozenset([0, 8]), frozenset([8, 0])),
    "orders of dicts": lambda: (
        lambda v: functools.reduce(torch.sub, v.values()),
        {"a": FIVE, "b": TWO},
        {"b": TWO, "a": FIVE},
    ),
    "orders of dicts of numbers": lambda: (first_of, {1: 5, 2: 6}, {2: 6, 1: 5}),
    "keys that are equal": lambda: (lambda v: v[1] * (2 if next(iter(v)) is True else 1), {1: FIVE}, {True: FIVE}),
    "patterns": lambda: (lambda v: FIVE * len(v.pattern.rstrip("x")), *PATTERNS),
    "texts of numbers": lambda: (lambda v: FIVE * (1 if v == 1 else 2), 1, "1"),
}
OPENED = {  # the package abele alone opens objects
    "numbers in objects": lambda: (lambda v: v.tensor + sign(v.factor), Settings(0.0, FIVE), Settings(-0.0, FIVE)),
    "keys in objects": lambda: (
        lambda v: v.d["x"] * next(iter(v.d)).number if False else v.t * [*v.d][0].number,
        Plain(t=FIVE, d={Text(1): TWO}),
        Plain(t=FIVE, d={Text(3): TWO}),
    ),
    "members in objects": lambda: (
        lambda v: v.t * v.k.value,
        *(Plain(t=FIVE, k=enum.Enum("Kind", {"MEMBER": factor}).MEMBER) for factor in (1, 3)),
    ),
}


@pytest.fixture
def parsers():
    yield
    for kind in poptorch._utils.custom_arg_parsers.copy():
        if kind.__qualname__.startswith("parsed."):
            poptorch.registerCustomArgParser(kind, None)


@pytest.mark.parametrize("make", [*CASES.values(), *OPENED.values()], ids=[*CASES, *OPENED])
def test_abele_has_a_program_for_each(make, parsers):
    function, *arguments = make()
    model = Applied(function)
    executor = abele.inferenceModel(model)
    expected = [model(TWO, argument) for argument in arguments]
    assert not torch.equal(*expected)
    for _ in range(2):
        for argument, wanted in zip(arguments, expected, strict=True):
            assert torch.equal(executor(TWO, argument), wanted)


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_poptorch_refuses_them_or_is_right(make, parsers):
    function, *arguments = make()
    model = Applied(function)
    executor = poptorch.inferenceModel(model)
    expected = [model(TWO, argument) for argument in arguments]
    assert torch.equal(executor(TWO, arguments[0]), expected[0])
    with contextlib.suppress(poptorch.Error) as _:
        assert torch.equal(executor(TWO, arguments[1]), expected[1])
    assert torch.equal(executor(TWO, arguments[0]), expected[0])


@pytest.mark.parametrize("training", [False, True])
def test_poptorch_takes_every_order_of_keys(training):
    """It compiles a program for each order, and all programs use the same weights."""

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor([1.5]))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, batch):
            self.calls += 1
            first, second = batch.values()
            result = (first - 3 * second) * self.weight + self.calls
            return poptorch.identity_loss(result, reduction="sum")

    def optimizer_of(model):
        return torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.5)

    model, eager = Net(), Net()
    make = poptorch.trainingModel if training else poptorch.inferenceModel
    executor = make(model, optimizer=optimizer_of(model)) if training else make(model)
    optimizer = optimizer_of(eager)
    for batch in ({"a": FIVE, "b": TWO}, {"b": TWO, "a": FIVE}, {"b": FIVE, "a": TWO}, {"a": TWO, "b": FIVE}):
        expected = eager(batch)
        if training:
            optimizer.zero_grad()
            expected.backward()
            optimizer.step()
        assert torch.equal(executor(batch), expected)
    executor.copyWeightsToHost()
    assert torch.equal(model.weight, eager.weight) and torch.equal(executor.model.calls, eager.calls)


def test_the_same_arguments_stay_the_same():
    """A second call with the very same arguments never needs another program."""
    nan = float("nan")
    values = [colliding(8, 0), {"k": nan}, numpy.array([nan, 1.0]), numpy.array(["a", None]), frozenset([8, 0])]
    values += [range(3), slice(0, None), torch.float16, Text(1), collections.deque([TWO]), Settings(1.0, TWO)]
    for package in (abele, poptorch):
        executor = package.inferenceModel(Applied(lambda value: FIVE))
        for _ in range(3):
            assert torch.equal(executor(TWO, values), FIVE + TWO)
        assert package is poptorch or executor._executable is not None


def test_servers_tell_them_apart():
    kinds = [collections.namedtuple("Batch", names) for names in ("x y", "y x")]
    rows = [kind(FIVE.view(1, 1), TWO.view(1, 1)) for kind in kinds]
    model = abele.inferenceModel(Applied(lambda v: v.x - v.y))
    with abele.serve(model, batch_rows=1) as server:
        answers = [server.submit(TWO.view(1, 1), row) for row in rows for _ in range(2)]
        assert [answer.result().item() for answer in answers] == [5, 5, -1, -1]
