"""Batches of graph libraries: objects with a parser that looks for real tensors."""

import poptorch
import pytest
import torch


class Graph:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Parser(poptorch.ICustomArgParser):
    @staticmethod
    def names(graph):
        return [name for name in sorted(vars(graph)) if isinstance(getattr(graph, name), torch.Tensor)]

    def yieldTensors(self, struct):
        for name in self.names(struct):
            yield getattr(struct, name)

    def reconstruct(self, original_structure, tensor_iterator):
        names = self.names(original_structure)
        return Graph(**{**vars(original_structure), **{name: next(tensor_iterator) for name in names}})


@pytest.fixture
def parser():
    poptorch.registerCustomArgParser(Graph, Parser())
    yield
    poptorch.registerCustomArgParser(Graph, None)


def graph(rows=2, fields=3):
    return Graph(x=torch.randn(rows, fields), label=torch.ones(rows, 1), name="a batch")


class Net(torch.nn.Module):
    def forward(self, batch):
        return batch["graph"].x * batch["graph"].label


def test_a_model_is_called_with_many_batches(parser):
    executor = poptorch.inferenceModel(Net())
    for _ in range(3):
        batch = graph()
        assert torch.equal(executor({"graph": batch}), batch.x * batch.label)


def test_a_batch_of_other_shapes_is_refused(parser):
    executor = poptorch.inferenceModel(Net())
    executor({"graph": graph()})
    with pytest.raises(poptorch.Error, match="E0704"):
        executor({"graph": graph(fields=4)})
    with pytest.raises(poptorch.Error, match="E0704"):
        executor({"graph": torch.ones(2, 3)})
