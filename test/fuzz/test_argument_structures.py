"""Whatever structure of arguments an executor is given: it answers as eager PyTorch, or with a documented error."""

import poptorch
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

QUICK = settings(max_examples=60, deadline=None, derandomize=True)
DOCUMENTED = (poptorch.Error, AssertionError)
DTYPES = [
    torch.float32,
    torch.float16,
    torch.int32,
    torch.int64,
    torch.bool,
    torch.uint8,
    torch.float64,
    torch.complex64,
]

tensors = st.builds(
    lambda shape, dtype, seed: torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
    st.integers(0, 9),
)
dense = st.builds(
    lambda shape, seed: torch.randn(shape, generator=torch.Generator().manual_seed(seed)),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(0, 9),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.floats(-2, 2), st.text("ab", max_size=2))


def nested(leaf):
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
        ),
        max_leaves=5,
    )


anything = nested(st.one_of(tensors, dense, plain))
easy = nested(st.one_of(dense, dense, plain))


class Doubles(torch.nn.Module):
    """Returns the structure it is given, with every tensor added to itself."""

    def forward(self, first, *rest, key=None, **named):
        return pytree.tree_map(_double, [first, list(rest), key, named])


def _double(leaf):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf | leaf if leaf.dtype == torch.bool else leaf + leaf


NARROW = {torch.int64: torch.int32, torch.float64: torch.float32}


def require_same(ours, theirs):
    a, form_a = pytree.tree_flatten(ours)
    b, form_b = pytree.tree_flatten(theirs)
    assert form_a == form_b
    for x, y in zip(a, b, strict=True):
        if not isinstance(y, torch.Tensor):
            assert x is y or x == y
            continue
        y = y.to(NARROW.get(y.dtype, y.dtype))
        assert x.dtype == y.dtype and torch.equal(x.reshape(y.shape), y)


def call(executor, args, kwargs):
    """Returns: True if it answered, as eager did."""
    try:
        ours = executor(*args, **kwargs)
    except DOCUMENTED:
        return False
    require_same(ours, Doubles()(*args, **kwargs))
    return True


def make():
    return poptorch.inferenceModel(Doubles(), poptorch.Options().outputMode(poptorch.OutputMode.All))


@QUICK
@given(
    first=anything, rest=st.lists(anything, max_size=2), named=st.dictionaries(st.sampled_from(["key", "x"]), anything)
)
def test_any_arguments(first, rest, named):
    call(make(), (first, *rest), named)


@QUICK
@given(first=easy, rest=st.lists(easy, max_size=2), named=st.dictionaries(st.sampled_from(["key", "x"]), easy))
def test_plain_structures_of_tensors_answer(first, rest, named):
    executor = make()
    assert call(executor, (first, *rest), named)
    assert call(executor, (first, *rest), named)


@QUICK
@given(one=easy, other=anything)
def test_a_second_call_with_another_structure(one, other):
    executor = make()
    call(executor, (one,), {})
    call(executor, (other,), {})
    assert call(executor, (one,), {})  # whatever the second was


@pytest.mark.parametrize("args", [(), (torch.ones(2), 1, {"a": torch.ones(2)})])
@pytest.mark.parametrize("named", [{"first": torch.ones(2)}, {"no_such": object()}])
def test_wrong_calls(args, named):
    class Two(torch.nn.Module):
        def forward(self, first, second):
            return first + second

    with pytest.raises(DOCUMENTED):
        poptorch.inferenceModel(Two())(*args, **named)
