"""Binding of call arguments to forward."""

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
