"""E0708, arguments of a wrong type: an Error that is a TypeError too, on the host and in a model."""

import abele
import poptorch
import pytest
import torch

X = torch.ones(4, 2)
OPERATORS = {
    "for_loop: count": lambda x: poptorch.for_loop("3", lambda v: v, [x]),
    "for_loop: body": lambda x: poptorch.for_loop(3, 3, [x]),
    "cond: condition": lambda x: poptorch.cond(True, lambda v: v, [x], lambda v: v, [x]),
    "cond: then_body": lambda x: poptorch.cond(torch.tensor([True]), None, [x], lambda v: v, [x]),
    "custom_op: inputs": lambda x: poptorch.custom_op([3], "A", "d", 1, [x]),
    "custom_op: a tensor as inputs": lambda x: poptorch.custom_op(x, "A", "d", 1, [x]),
    "custom_op: name": lambda x: poptorch.custom_op([x], 3, "d", 1, [x]),
    "custom_op: domain": lambda x: poptorch.custom_op([x], "A", None, 1, [x]),
    "custom_op: version": lambda x: poptorch.custom_op([x], "A", "d", "1", [x]),
    "custom_op: example_outputs": lambda x: poptorch.custom_op([x], "A", "d", 1, [3]),
    "custom_op: attributes": lambda x: poptorch.custom_op([x], "A", "d", 1, [x], [1]),
    "fps: ptr": lambda x: poptorch.fps(x, ["a", "b"]),
    "ipu_print_tensor: title": lambda x: poptorch.ipu_print_tensor(x, 3),
    "ipu_print_tensor: digits": lambda x: poptorch.ipu_print_tensor(x, digits="4"),
    "serializedMatMul: lhs": lambda x: poptorch.serializedMatMul(3, x, poptorch.MatMulSerializationMode.Disabled),
    "set_available_memory": lambda x: poptorch.set_available_memory(x, "0.5"),
    "CPU": lambda x: poptorch.CPU(3, "three")(x),
}


class Calls(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, x):
        if self.operator is not None:
            self.operator(x)
        return x + 1


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_operators(operator):
    with pytest.raises(TypeError) as on_host:
        operator(X)
    model = poptorch.inferenceModel(Calls(operator))
    with pytest.raises(TypeError) as on_device:
        model(X)
    for raised in (on_host.value, on_device.value):
        assert isinstance(raised, poptorch.Error) and raised.code == "E0708" and "expected" in str(raised)
    model.model.operator = None
    assert torch.equal(model(X), X + 1)


def test_the_types_are_named():
    with pytest.raises(
        TypeError, match=r"(?s)for_loop: arguments of a wrong type.*count: str, body: function"
    ) as raised:
        poptorch.for_loop("3", lambda v: v, [X])
    assert "count: 'int'" in str(raised.value)


def test_errors_of_a_body_are_its_own():
    def body(value):
        return torch.ops.aten.add(value, object())

    with pytest.raises((TypeError, RuntimeError)) as raised:
        poptorch.for_loop(2, body, [X])
    assert not isinstance(raised.value, poptorch.Error)


@pytest.mark.parametrize("size", ["3", 2.5, None])
def test_sizes_of_loaders_and_accessors(size):
    with pytest.raises(TypeError, match="E0708.*buffer_size"):
        poptorch.AsynchronousDataAccessor([X], buffer_size=size)
    with pytest.raises(TypeError, match="E0708.*num_workers"):
        poptorch.DataLoader(poptorch.Options(), [X], num_workers=size)
    if size is not None:
        with pytest.raises(TypeError, match="E0708.*rebatched_size"):
            poptorch.AsynchronousDataAccessor([X], rebatched_size=size)
        with pytest.raises(TypeError, match="E0708.*rebatched_worker_size"):
            poptorch.DataLoader(
                poptorch.Options(),
                [X],
                batch_size=4,
                mode=poptorch.DataLoaderMode.AsyncRebatched,
                rebatched_worker_size=size,
            )


def test_times_of_accessors():
    with pytest.raises(TypeError, match="E0708.*miss_sleep_time_in_ms"):
        poptorch.AsynchronousDataAccessor([X], miss_sleep_time_in_ms="x")
    for wrong in (-1, float("nan")):
        with pytest.raises(AssertionError, match="miss_sleep_time_in_ms"):
            poptorch.AsynchronousDataAccessor([X], miss_sleep_time_in_ms=wrong)


def test_options_of_the_accessor_of_a_loader():
    for wrong in ([1], "early_preload"):
        with pytest.raises(TypeError, match="E0708.*async_options"):
            poptorch.DataLoader(poptorch.Options(), [X], mode=poptorch.DataLoaderMode.Async, async_options=wrong)


@pytest.mark.parametrize("path", [3, None, ["a"]])
def test_paths(path):
    model = poptorch.inferenceModel(Calls(None))
    calls = [lambda: poptorch.load(path), lambda: model.loadExecutable(path)]
    for call in calls:
        with pytest.raises(TypeError, match="E0708"):
            call()
    model(X)
    with pytest.raises(TypeError, match="E0708"):
        model.save(path)
    assert torch.equal(model(X), X + 1)


class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.a
        yield struct.b

    def reconstruct(self, original_structure, tensor_iterator):
        return Pair(next(tensor_iterator), next(tensor_iterator))


def _parser(yielded, taken):
    class Parser(poptorch.ICustomArgParser):
        def yieldTensors(self, struct):
            yield from [struct.a, struct.b][:yielded]

        def reconstruct(self, original_structure, tensor_iterator):
            return Pair(*[next(tensor_iterator) for _ in range(taken)], *[None] * (2 - taken))

    return Parser()


@pytest.fixture
def registered():
    def register(parser):
        poptorch.registerCustomArgParser(Pair, parser)

    yield register
    poptorch.registerCustomArgParser(Pair, None)


@pytest.mark.parametrize("wrong", [3, "Pair", None, Pair(0, 0)])
def test_parsers_are_of_classes(wrong):
    with pytest.raises(TypeError, match="E0708.*arg_data_type"):
        poptorch.registerCustomArgParser(wrong, PairParser())
    model = poptorch.inferenceModel(Calls(None))
    assert torch.equal(model(X), X + 1)


@pytest.mark.parametrize("yielded, taken", [(1, 2), (2, 1), (0, 1)])
def test_parsers_that_take_other_tensors_than_they_yield(registered, yielded, taken):
    class Takes(torch.nn.Module):
        def forward(self, pair, x):
            return x + 1

    registered(_parser(yielded, taken))
    model = poptorch.inferenceModel(Takes())
    found = "more" if taken > yielded else taken
    with pytest.raises(
        poptorch.Error, match=rf"(?s)E0708.*parser of Pair.*takes {found}, yieldTensors\(\) yields {yielded}"
    ):
        model(Pair(X, X * 2), X)
    registered(PairParser())
    assert torch.equal(model(Pair(X, X * 2), X), X + 1)


class Opaque:
    def __init__(self, value):
        self.value = value


def test_objects_with_and_without_a_parser_in_one_call(registered):
    class Takes(torch.nn.Module):
        def forward(self, pair, other):
            return Pair(pair.a + other.value, pair.b), pair.a * 2

    registered(PairParser())
    model = abele.inferenceModel(Takes())
    for factor in (1.0, 3.0):
        pair, doubled = model(Pair(X * factor, X + factor), Opaque(X - factor))
        assert torch.equal(pair.a, X * factor + X - factor) and torch.equal(pair.b, X + factor)
        assert torch.equal(doubled, X * factor * 2)


@pytest.mark.parametrize("number", [1.5, 2.0, object(), "1.5"])
def test_numbers_of_devices(number):
    class Blocks(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("a", ipu_id=number):
                return x + 1

    with pytest.raises(poptorch.Error, match="E0710.*ipu_id"):
        poptorch.inferenceModel(Blocks())(X)


@pytest.mark.parametrize("wrong", [[1], [], "x", None, [1.5] * 5057, [0] * 100, [7, *[300] * 5056], 3])
def test_random_states(wrong):
    class Draws(torch.nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    model = poptorch.inferenceModel(Draws(), poptorch.Options().randomSeed(7))
    model(X)
    before = model.rng_state
    with pytest.raises(poptorch.Error, match="E0708.*rng_state"):
        model.rng_state = wrong
    assert model.rng_state == before
    drawn = model(X)
    model.rng_state = before
    assert torch.equal(model(X), drawn)


def test_elements_without_a_key():
    with pytest.raises(AssertionError, match="died: an element of the data set has other fields than the first one"):
        list(poptorch.AsynchronousDataAccessor([{"a": X}, {"b": X}]))
