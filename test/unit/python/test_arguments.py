"""Arguments of calls: binding them to forward, comparing them with those of a program, objects among them."""

import copy
import types

import abele
import poptorch
import pytest
import torch
from abele._arguments import Binding, hasDict, requireSame, signatureOf


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
    compiled = signatureOf(([torch.zeros(2), True], {"k": (torch.zeros(1), "a")}))
    requireSame("", compiled, ([torch.ones(2), True], {"k": (torch.ones(1), "a")}))
    with pytest.raises(poptorch.Error, match="E0704") as raised:
        requireSame("", compiled, later)
    assert "destroy()" in str(raised.value)


def test_dicts_are_found():
    assert hasDict(([1, ({},)],)) and not hasDict(([1, (2,)],))


class Cache:
    """What language models keep of the words before: lists of tensors, a number, other objects."""

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
    for step in range(3):  # one more tensor in each: a program of its own
        x = torch.randn(2) + step
        result, expected = model(x, ours), net(x, theirs)
        assert result["cache"] is ours
        same(result, expected)
    for value in (1.0, 2.0):  # others of the same kind, by the program that is there
        given = Cache(torch.full((2,), value), limit=torch.ones(2))
        x = torch.randn(2)
        expected = net(x, copy.deepcopy(given))
        same(model(x, given), expected)
    assert abele.verify(abele.inferenceModel(Cached()), (x, given)).equal
    first, second = Cache(), Cache()
    model(x, first), model(x + 1, second)
    assert torch.equal(first.keys[0], x + 1) and torch.equal(second.keys[0], x + 2) and second.seen.words == 1


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
    """Classes without a parser are constants there: nothing else goes on without a word."""
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
