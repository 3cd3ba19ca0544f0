"""Abele as a backend of torch.compile: `torch.compile(model, backend="abele")`.

Dynamo finds graphs in the program's Python, and AOTAutograd makes plain graphs of operators from each: one for
inference, or one for forward and one for backward. Each of them is captured and compiled for one device like any model.
Weights, gradients and optimizer stay the program's own tensors.

Source: torch.compile's interface for backends (torch/_dynamo/backends); ours.
"""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import list_backends, register_backend
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import default_partition

from ._errors import user_error
from ._models import inferenceModel
from .enums import OutputMode
from .options import Options

__all__ = ["backend"]


def _given(argument):
    """An argument in the device's form. Devices take no tensors without elements, so these are replaced by their
    form."""
    if not isinstance(argument, torch.Tensor):
        return argument
    if argument.numel() == 0:
        return (tuple(argument.shape), argument.stride(), str(argument.dtype).removeprefix("torch."))
    return argument.detach()


def _flat(result):
    """The memory of a result as one row, and the result's view of it, because devices return contiguous rows."""
    result = result.resolve_conj().resolve_neg()
    sizes, strides = tuple(result.shape), result.stride()
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if result.numel() else 0
    return result.as_strided((span,), (1,), result.storage_offset()), (sizes, strides)


class _Computation(torch.nn.Module):
    """A graph as the forward of a model."""

    def __init__(self, graph):
        super().__init__()
        self._graph = graph

    def forward(self, *arguments):
        given = [
            torch.empty_strided(*each[:2], dtype=getattr(torch, each[2])) if isinstance(each, tuple) else each
            for each in arguments
        ]
        rows, forms = zip(*map(_flat, self._graph(*given)), strict=True)
        return rows, forms


def _holds_tensor(node):
    if "val" not in node.meta:
        return True
    return any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(node.meta["val"]))


def _origins(graph):
    """Node -> the nodes that compute its memory; none for the graph's inputs and their views.

    Views, and nodes that return no tensor, such as sizes, compute no elements.
    """
    found = {}
    for node in graph.nodes:
        operands = node.all_input_nodes
        if node.target is operator.getitem:
            is_view = found[operands[0]] != (operands[0],)
        else:
            is_view = getattr(node.target, "is_view", False) or not _holds_tensor(node)
        if node.op == "placeholder" or is_view:
            found[node] = tuple(dict.fromkeys(origin for operand in operands for origin in found[operand]))
        else:
            found[node] = (node,)
    return found


def _draws_numbers(graph):
    return any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in graph.nodes)


class _Compiled:
    """A graph of AOTAutograd on one device. Threads: safe.

    The device computes memory. Views of it, and views of the graph's inputs, are made here by eager PyTorch. Results
    therefore share memory as in eager, and no device copies an input.
    """

    def __init__(self, module):
        graph, origins = module.graph, _origins(module.graph)
        results = list(graph.output_node().args[0])
        computed = dict.fromkeys(o for result in results if isinstance(result, torch.fx.Node) for o in origins[result])
        views = [node for node in graph.nodes if node not in computed and computed.keys() >= set(origins[node])]
        self._show = self._part(module, views, computed, results)
        self._computes = bool(computed)
        self._computation = self._part(module, graph.nodes, (), list(computed))
        self._draws = _draws_numbers(graph)
        self._model = None

    @staticmethod
    def _part(module, nodes, more_inputs, results):
        """A module with these nodes of the module's graph, its inputs and further inputs."""
        graph, copies = torch.fx.Graph(), {}
        for node in module.graph.find_nodes(op="placeholder"):
            copies[node] = graph.node_copy(node)
        for node in more_inputs:
            copies[node] = graph.placeholder(node.name)
        for node in nodes:
            if node.op not in ("placeholder", "output"):
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output([copies[result] if isinstance(result, torch.fx.Node) else result for result in results])
        graph.eliminate_dead_code()
        return torch.fx.GraphModule(module, graph)

    def __call__(self, *arguments):
        return self._show(*arguments, *self._compute(arguments))

    def _compute(self, arguments):
        if not self._computes:
            return ()
        given = list(map(_given, arguments))
        if self._model is None:  # not earlier: torch makes no real tensors while it compiles
            self._model = inferenceModel(_Computation(self._computation), _options())
        rows, forms = self._model(*given) if not self._draws else self._drawing(given)
        return [row.as_strided(*form) for row, form in zip(rows, forms, strict=True)]

    def _drawing(self, given):
        """Runs a call that continues torch's random stream, and moves torch's stream past it."""
        with self._model._lock:
            self._model.compile(*given)
            session = self._model._native.session()
            session.setRngState(torch.get_rng_state())
            results = self._model(*given)
            torch.set_rng_state(session.rngState())
        return results


def _options():
    """One device with the threads of eager PyTorch, so that both compute in the same order."""
    options = Options().outputMode(OutputMode.Final).showCompilationProgressBar(False)
    return options.threadsPerDevice(torch.get_num_threads())


def _compile(module, _example_inputs):
    return make_boxed_func(_Compiled(module))


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """Compiles a graph of Dynamo for one device; torch.compile calls it.

    Args:
        graph: the graph that Dynamo found.
        example_inputs: tensors like its arguments.
        settings: `mode` and `options` of torch.compile: there are none.
    Returns: a function with the arguments and the results of the graph; results and gradients are those of eager
        PyTorch, bit for bit. Its first call for each shape compiles; what cannot be captured is an abele.Error there.
    Raises:
        abele.Error: E0702 for settings.
    """
    if settings:
        raise user_error(
            "E0702",
            f"torch.compile(backend='abele') was given {', '.join(f'{key}={settings[key]!r}' for key in settings)}",
            expected="neither mode nor options",
            remedy="abele.trainingModel(model, abele.Options()) takes all options of Abele",
        )
    compiler = aot_autograd(fw_compiler=_compile, partition_fn=default_partition)  # it keeps what it is given: one each
    return compiler(graph, example_inputs)


if "abele" not in list_backends(None):
    register_backend(backend, name="abele")
