"""Arguments of calls: binding them to forward, comparing them with those of a program, objects among them."""

import collections
import copy
import dataclasses
import functools
import types

import abele
import numpy
import poptorch
import pytest
import torch
from abele._arguments import Binding, has_dict, require_same, signature_of


def test_binding_orders_and_defaults():
    def forward(a, b=2, *rest, key, flag=True, **more):
        pass

    binding = Binding(forward)
    assert binding.bind((1,), {"key": 3}) == ([1, 2], {"key": 3, "flag": True})
    assert binding.bind((), {"b": 5, "a": 4, "key": 3, "z": 6}) == ([4, 5], {"key": 3, "flag": True, "z": 6})
    assert binding.bind((1, 2, 3, 4), {"key": 0, "flag": False}) == ([1, 2, 3, 4], {"key": 0, "flag": False})
    with pytest.raises(poptorch.Error, match="'a'"):
        binding.bind((), {"key": 1})
    with pytest.raises(poptorch.Error, match="'key'"):
        binding.bind((1,), {})


def test_binding_refuses_what_does_not_fit():
    binding = Binding(lambda a, b=None: None)
    assert binding.bind((), {"b": 1, "a": 2}) == ([2, 1], {})
    for args, kwargs in (((1, 2, 3), {}), ((1,), {"a": 2}), ((1,), {"c": 2})):
        with pytest.raises(AssertionError):
            binding.bind(args, kwargs)


@pytest.mark.parametrize(
    "later",
    [
        ([torch.ones(2), 1], {"k": (torch.ones(1), "a")}),
        ([torch.ones(2, dtype=torch.int32), True], {"k": (torch.ones(1), "a")}),
        ([torch.ones(3), True], {"k": (torch.ones(1), "a")}),
        ([torch.ones(2), True], {"k": [torch.ones(1), "a"]}),
        ([torch.ones(2), True], {"k": (torch.ones(1),)}),
        ([torch.ones(2), True], {"k": (torch.ones(1), "b")}),
        ([torch.ones(2), True], {"j": (torch.ones(1), "a")}),
        ([3.0, True], {"k": (torch.ones(1), "a")}),
        ([torch.ones(2), torch.ones(1)], {"k": (torch.ones(1), "a")}),
    ],
)
def test_later_calls_must_fit(later):
    compiled = signature_of(([torch.zeros(2), True], {"k": (torch.zeros(1), "a")}))
    require_same("", compiled, ([torch.ones(2), True], {"k": (torch.ones(1), "a")}))
    with pytest.raises(poptorch.Error, match="E0704") as raised:
        require_same("", compiled, later)
    assert "destroy()" in str(raised.value)


def test_dicts_are_found():
    assert has_dict(([1, ({},)],)) and not has_dict(([1, (2,)],))


class Cache:
    """A language model's memory of earlier words: lists of tensors, a number, other objects."""

    def __init__(self, *keys, limit=None):
        self.keys, self.limit = list(keys), limit
        self.seen = types.SimpleNamespace(words=len(keys))

    def update(self, x):
        self.keys.append(x)
        self.seen.words += 1
        if self.limit is not None:
            self.limit.mul_(2)
        return torch.stack(self.keys).sum(dim=0)


class Cached(torch.nn.Module):
    def forward(self, x, cache):
        return {"y": cache.update(x + 1) * 2, "cache": cache, "made": [Cache(x, limit=x * 3)]}


def same(ours, theirs):
    assert torch.equal(ours["y"], theirs["y"])
    for a, b in ((ours["cache"], theirs["cache"]), (ours["made"][0], theirs["made"][0])):
        assert type(a) is type(b) and a.seen == b.seen and len(a.keys) == len(b.keys)
        assert all(map(torch.equal, [*a.keys, a.limit], [*b.keys, b.limit]))


def test_objects_of_a_call_change_as_eager_changes_them():
    options = abele.Options().showCompilationProgressBar(False)
    model, net = abele.inferenceModel(Cached(), options), Cached()
    ours, theirs = (Cache(limit=torch.ones(2)) for _ in range(2))
    for step in range(3):  # each has one more tensor, and therefore its own program
        x = torch.randn(2) + step
        result, expected = model(x, ours), net(x, theirs)
        assert result["cache"] is ours
        same(result, expected)
    for value in (1.0, 2.0):  # others of the same kind use the existing program
        given = Cache(torch.full((2,), value), limit=torch.ones(2))
        x = torch.randn(2)
        expected = net(x, copy.deepcopy(given))
        same(model(x, given), expected)
    assert abele.verify(abele.inferenceModel(Cached()), (x, given)).equal
    first, second = Cache(), Cache()
    model(x, first), model(x + 1, second)
    assert torch.equal(first.keys[0], x + 1) and torch.equal(second.keys[0], (x + 1) + 1) and second.seen.words == 1


def test_objects_that_reach_themselves():
    class Node:
        def __init__(self, value):
            self.value, self.again, self.pair = value, self, (value, {"self": self})

    def forward(node):
        made = Node(node.value * 2)
        node.pair[1]["made"] = made
        return made

    model = abele.inferenceModel(Applied(forward))
    for value in (torch.ones(2), torch.full((2,), 5.0)):
        node = Node(value)
        result = model(node)
        assert result is node.pair[1]["made"] is not node and result.again is result is result.pair[1]["self"]
        assert torch.equal(result.value, value * 2) and result.pair[0] is result.value


class Applied(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def test_programs_of_poptorch_name_objects_that_are_constants(capfd):
    """In poptorch classes without a parser are constants, and warnings say so."""
    model = poptorch.inferenceModel(Applied(lambda x, cache: (x + cache.keys[0], [[Cache(x)]])))
    cache, x = Cache(torch.ones(2)), torch.ones(2)
    assert torch.equal(model(x, cache)[0], x + 1)
    text = capfd.readouterr().err
    assert "an argument of forward is a Cache with tensors inside" in text
    assert "forward returns a Cache with tensors inside" in text
    assert torch.equal(model(x + 1, cache)[0], x + 2)
    for change in (lambda: cache.keys[0].add_(1), lambda: cache.keys.append(x)):
        change()
        with pytest.raises(poptorch.Error, match="E0704.*\n.*objects.*\n.*Cache"):
            model(x, cache)


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """Has no dictionary of attributes, and refuses to be changed."""

    keys: torch.Tensor
    step: int
    spare: object = None


def test_objects_with_slots():
    class Both(State):
        __slots__ = ("empty", "__dict__")

    def forward(state):
        return dataclasses.replace(state, keys=state.keys * 2, step=state.step + 1)

    model = abele.inferenceModel(Applied(forward))
    for kind in (State, Both):
        for value in (1.0, 2.0):
            given = kind(torch.full((2,), value), 3)
            for _ in range(2):
                result = model(given)
                assert type(result) is kind and result.step == 4 and torch.equal(result.keys, given.keys * 2)
                given.keys.add_(1)


@dataclasses.dataclass(eq=False, repr=False)
class Settings:
    scale: float
    calls: int = 0


def _scaled(x, settings):
    settings.calls += 1
    return x * settings.scale


def test_objects_of_one_kind_have_one_program():
    captures = []

    def forward(x, cache, items, function):
        captures.append(0)
        return function(x + cache.keys[0] + items.x), cache

    model = abele.inferenceModel(Applied(forward))
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        assert torch.equal(model(x, Cache(x), Attributes(x=x), torch.relu)[0], x * 3)
    assert len(captures) == 2  # captures of one program: the second one checks the first


def test_objects_without_tensors_count_too():
    model, settings = abele.inferenceModel(Applied(_scaled)), Settings(2.0)
    x = torch.ones(2)
    for calls, scale in ((1, 2.0), (2, 3.0)):
        settings.scale = scale
        assert model(x, settings).tolist() == [scale] * 2 and settings.calls == calls
    fresh = Settings(2.0)  # a program of its kind is there
    assert model(x, fresh).tolist() == [2.0] * 2 and fresh.calls == 1


def test_programs_of_poptorch_name_objects_that_changed(capfd):
    model, settings = poptorch.inferenceModel(Applied(_scaled)), Settings(2.0)
    x = torch.ones(2)
    model(x, settings), model(x, settings)
    assert "has changed" not in capfd.readouterr().err
    settings.scale = 3.0
    assert model(x, settings).tolist() == [2.0] * 2
    assert "the Settings among the arguments of forward has changed" in capfd.readouterr().err


class Attributes(dict):
    """Its items are its attributes."""

    def __init__(self, **items):
        super().__init__(**items)
        self.__dict__ = self


class Scaled(list):
    scale = 1.0


@pytest.mark.parametrize("package", [abele, poptorch])
def test_containers_of_ones_own(package):
    def forward(items, tensors):
        result = Attributes(y=items.x * tensors[0] * tensors.scale)
        result.z = result.y + items["x"]
        return result

    model = package.inferenceModel(Applied(forward))
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        tensors = Scaled([x])
        tensors.scale = 3.0
        result = model(Attributes(x=x), tensors)
        assert torch.equal(result.y, x * x * 3) and torch.equal(result["z"], result.y + x) and result.z is result["z"]


def test_containers_that_hold_themselves_in_objects():
    def forward(cache):
        cache.items.y = cache.items.x * 2
        return cache.items["y"]

    model = abele.inferenceModel(Applied(forward))
    for value in (1.0, 2.0):
        cache = types.SimpleNamespace(items=Attributes(x=torch.full((2,), value)))
        assert torch.equal(model(cache), cache.items.x * 2) and cache.items["y"] is cache.items.y


def _attribute(x):
    result = Scaled()
    result.scale = x
    return result


@pytest.mark.parametrize("package", [abele, poptorch])
@pytest.mark.parametrize("hold", [lambda x: collections.deque([x]), lambda x: {x}, lambda x: lambda: x, _attribute])
def test_what_is_not_opened_is_named(package, hold, capfd):
    package.inferenceModel(Applied(lambda x, held: x + 1))(torch.ones(2), hold(torch.ones(2)))
    assert "with tensors inside, which are constants" in capfd.readouterr().err


def test_large_arrays_tell_programs_apart():
    model = abele.inferenceModel(Applied(lambda x, array: x + torch.from_numpy(array)))
    array = numpy.arange(5000.0, dtype=numpy.float32)
    for value in (0.0, 7.0):
        array[2500] = value
        assert torch.equal(model(torch.ones(5000), array), torch.from_numpy(array) + 1)


class Times:
    """Cannot be opened, and has no text of its own."""

    def __init__(self, factor):
        self.factor = factor

    def __repr__(self):
        return "Times"

    def __del__(self):
        pass

    def __call__(self, x):
        return x * self.factor


@pytest.mark.parametrize(
    "make",
    [
        Times,
        lambda factor: Times(factor).__call__,
        lambda factor: functools.partial(torch.mul, torch.tensor(1 + factor * 1e-6)),
        lambda factor: torch.nn.Threshold(0.0, factor, inplace=False).requires_grad_(False).double,
    ],
)
def test_values_whose_texts_are_alike_tell_programs_apart(make):
    def forward(x, value):
        return value().forward(-x) if isinstance(getattr(value, "__self__", None), torch.nn.Module) else value(x)

    model, x = abele.inferenceModel(Applied(forward)), torch.ones(2)
    for factor in (2.0, 3.0):
        value = make(factor)
        assert torch.equal(model(x, value), forward(x, value))


def test_programs_of_objects_are_not_saved(tmp_path):
    model = abele.inferenceModel(Applied(lambda x, cache: x + cache.keys[0]))
    model(torch.ones(2), Cache(torch.ones(2)))
    with pytest.raises(poptorch.Error, match="objects"):
        model.save(str(tmp_path / "file"), export_model=False)


class Doubled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result * 2 if function is torch.sin else result


class Bare(torch.Tensor):
    pass


@pytest.mark.parametrize("kind, is_named", [(Doubled, True), (Bare, False), (torch.nn.Parameter, False)])
def test_inputs_with_behaviour_of_their_own_are_named(kind, is_named, capfd):
    x = torch.ones(2).as_subclass(kind)
    found = abele.inferenceModel(Applied(torch.sin))(x.detach())
    assert torch.equal(found, torch.ones(2).sin())
    assert ("has a __torch_function__ of its own" in capfd.readouterr().err) == is_named
