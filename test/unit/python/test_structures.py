"""Tensors in nested containers."""

import collections

import poptorch
import pytest
import torch
from poptorch import structures

Pair = collections.namedtuple("Pair", "first second")


class Box:
    def __init__(self, tensor, label):
        self.tensor, self.label = tensor, label


class BoxParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.tensor

    def reconstruct(self, original_structure, tensor_iterator):
        return Box(next(tensor_iterator), original_structure.label)


def example():
    tensors = [torch.full((2,), float(i)) for i in range(6)]
    ordered = collections.OrderedDict(b=tensors[3], a=tensors[4])
    return tensors, [Pair(tensors[0], {"x": tensors[1], "n": 3}), (tensors[2], None), ordered, "text", tensors[5]]


def test_flatten_and_rebuild_keep_types_and_order():
    tensors, structure = example()
    assert [t is u for t, u in zip(poptorch.flattenTensorStructure(structure), tensors, strict=True)] == [True] * 6
    rebuilt = poptorch.reconstructTensorStructure(structure, [t + 1 for t in tensors])
    assert type(rebuilt[0]) is Pair and type(rebuilt[2]) is collections.OrderedDict
    assert list(rebuilt[2]) == ["b", "a"] and rebuilt[0].second["n"] == 3 and rebuilt[3] == "text"
    assert torch.equal(rebuilt[4], tensors[5] + 1) and rebuilt[1][1] is None


def test_dict_order_follows_the_canonical_structure():
    a, b = torch.zeros(1), torch.ones(1)
    assert poptorch.flattenTensorStructure({"b": b, "a": a}, {"a": a, "b": b})[0] is a


def test_custom_types_need_a_parser():
    box = Box(torch.ones(2), "label")
    assert poptorch.flattenTensorStructure([box]) == []
    poptorch.registerCustomArgParser(Box, BoxParser())
    try:
        assert poptorch.flattenTensorStructure([box]) == [box.tensor]
        rebuilt = poptorch.reconstructTensorStructure((box,), [torch.zeros(2)])
        assert rebuilt[0].label == "label" and torch.equal(rebuilt[0].tensor, torch.zeros(2))
        assert structures.skeleton(box).tensor.numel() == 0

        class Special(Box):
            pass

        assert len(poptorch.flattenTensorStructure(Special(torch.ones(1), ""))) == 1
    finally:
        poptorch.registerCustomArgParser(Box, None)
    poptorch.registerCustomArgParser(Box, None)
    with pytest.raises(poptorch.Error):
        poptorch.registerCustomArgParser(Box, object())
