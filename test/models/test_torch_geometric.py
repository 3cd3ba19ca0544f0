"""Networks of torch_geometric on graphs of a fixed size, with random weights."""

import pytest
import torch
from walk import Refused, Row, check

NODES, EDGES, FEATURES = 12, 30, 8


def graphs(rows):
    """Each micro-batch is one graph, whose edges lead to other nodes."""
    first = torch.randint(NODES, (rows, EDGES))
    edges = torch.stack([first, (first + torch.randint(1, NODES, (rows, EDGES))) % NODES], 1)
    return {"x": torch.randn(rows, NODES, FEATURES), "edges": edges, "labels": torch.randint(3, (rows, NODES))}


def molecules(rows):
    return {"numbers": torch.randint(1, 9, (rows, NODES)), "positions": torch.randn(rows, NODES, 3) * 2}


class OneGraph(torch.nn.Module):
    """Batches have a first dimension; a graph of torch_geometric has none."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edges, labels=None):
        return self.model(x[0], edges[0])


class OneMolecule(torch.nn.Module):
    """Atoms by number and place."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, numbers, positions):
        return self.model(numbers[0], positions[0], torch.zeros(NODES, dtype=torch.long))


class OneBond(torch.nn.Module):
    """One molecule with numbers at its edges."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, edges, kinds):
        return self.model(x[0], edges[0], kinds[0], torch.zeros(NODES, dtype=torch.long))


def bonds(rows):
    edges = torch.randint(NODES, (rows, 2, EDGES))
    return {"x": torch.randn(rows, NODES, FEATURES), "edges": edges, "kinds": torch.randn(rows, EDGES, 4)}


def every_pair(positions, batch):
    """The neighbours of each atom: all others."""
    first, second = torch.triu_indices(NODES, NODES, 1)
    edges = torch.stack([torch.cat([first, second]), torch.cat([second, first])])
    return edges, (positions[edges[0]] - positions[edges[1]]).norm(dim=-1)


def classes(result, batch):
    return torch.nn.functional.cross_entropy(result, batch["labels"][0])


def square(result, batch):
    return result.square().mean()


def row(name, stages, wrapper=OneGraph, batch=graphs, loss=classes, positional=(FEATURES, 16, 3), **settings):
    refused = {mode: settings.pop(mode, None) for mode in ("training", "inference")}
    suffix = ", add_self_loops=False" if "add_self_loops" in settings else ""

    def make():
        import torch_geometric.nn

        return wrapper(getattr(torch_geometric.nn, name)(*positional, **settings))

    return Row(name + suffix, make, batch, stages, rows=1, loss=loss, **refused)


# aggregates, scalers and in-degrees of PNA
PNA = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": torch.arange(6)}
LAYERS = {"num_layers": 3, "out_channels": 3, "positional": (FEATURES, 16)}
TOP = Refused("E0105", "multiplies sparse matrices of edges")

ROWS = [
    row("GCN", 3, **LAYERS),
    row("GCN", 3, **LAYERS, add_self_loops=False),
    row("GraphSAGE", 2, **LAYERS, dropout=0.2),
    row("GIN", 3, **LAYERS, norm="batch_norm"),
    row("GAT", 4, **LAYERS, heads=2),
    row("GAT", 4, **LAYERS, heads=2, add_self_loops=False),
    row("PNA", 2, **LAYERS, **PNA),
    row("EdgeCNN", 2, **LAYERS),
    row("GraphUNet", 2, depth=2, training=TOP, inference=TOP),
    row("SchNet", 3, OneMolecule, molecules, square, (16, 16, 2, 8), interaction_graph=every_pair),
    row("AttentiveFP", 2, OneBond, bonds, square, (FEATURES, 16, 3, 4, 2, 2)),
]


@pytest.mark.parametrize("mode", ["training", "inference"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_class(row, mode):
    pytest.importorskip("torch_geometric")
    check(row, mode)
