"""Pipeline stages of the layers of a model: assignment objects, and their rules.

Source: spec keras.md, section 2.
"""

from __future__ import annotations

from typing import Any

from keras.src.models.functional import Functional
from keras.src.models.sequential import Sequential
from keras.src.ops.function import _build_map, make_node_key

from .._errors import refused
from . import _stages


def _describe(values):
    return ", ".join(map(str, values))


class _Invocation:
    """One call of a layer or of a nested model."""

    def __init__(self, called, node_index):
        self._called = called
        self._node_index = node_index

    @property
    def node_index(self) -> int:
        """The index of this call among the calls of its layer."""
        return self._node_index

    @property
    def inbound_layers(self) -> Any:
        """The layers that its inputs come from."""
        return [node.operation for node in self._called._inbound_nodes[self._node_index].parent_nodes]


class FunctionalLayerPipelineStageAssignment(_Invocation):
    """The pipeline stage of one invocation of a layer in a Functional model.

    Attributes:
        pipeline_stage: the stage, or None.
    """

    def __init__(self, layer: Any, node_index: int, pipeline_stage: int | None = None) -> None:
        super().__init__(layer, node_index)
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer, or the operation of keras.ops, that is called."""
        return self._called

    def _copy(self):
        return FunctionalLayerPipelineStageAssignment(self._called, self._node_index, self.pipeline_stage)

    def __repr__(self):
        return f"Layer: {self._called.name} (node index: {self._node_index}), pipeline stage: {self.pipeline_stage}"


class FunctionalNestedModelPipelineStageAssignment(_Invocation):
    """The pipeline stages of the invocations inside of a model that another model calls.

    Attributes:
        pipeline_stage_assignments: assignments of the nested model's invocations, in post-order.
    """

    def __init__(self, nested_model: Any, node_index: int, pipeline_stage_assignments: list[Any]) -> None:
        super().__init__(nested_model, node_index)
        self.pipeline_stage_assignments = pipeline_stage_assignments

    @property
    def nested_model(self) -> Any:
        """The model that is called."""
        return self._called

    def _copy(self):
        copies = [assignment._copy() for assignment in self.pipeline_stage_assignments]
        return FunctionalNestedModelPipelineStageAssignment(self._called, self._node_index, copies)

    def __repr__(self):
        inner = "; ".join(map(repr, self.pipeline_stage_assignments))
        return f"Nested model: {self._called.name} (node index: {self._node_index}), assignments: [{inner}]"


class SequentialLayerPipelineStageAssignment:
    """The pipeline stage of a layer in a Sequential model."""

    def __init__(self, layer: Any, pipeline_stage: int | None = None) -> None:
        self._layer = layer
        self.pipeline_stage = pipeline_stage

    @property
    def layer(self) -> Any:
        """The layer."""
        return self._layer

    @property
    def pipeline_stage(self) -> int | None:
        """The stage, or None."""
        return self._pipeline_stage

    @pipeline_stage.setter
    def pipeline_stage(self, stage: int | None) -> None:
        self._pipeline_stage = stage

    def _copy(self):
        return SequentialLayerPipelineStageAssignment(self._layer, self._pipeline_stage)

    def __repr__(self):
        return f"Layer: {self._layer.name}, pipeline stage: {self._pipeline_stage}"


_FUNCTIONAL_KINDS = (FunctionalLayerPipelineStageAssignment, FunctionalNestedModelPipelineStageAssignment)


# Graphs ---------------------------------------------------------------------------------------------------------------
def graph_of(model):
    """The Functional graph of a model; None for a subclassed model, or a Sequential one that was not built yet."""
    if isinstance(model, Functional):
        return model
    return model._functional if isinstance(model, Sequential) else None


def invocations(graph):
    """Nodes of a Functional graph without its inputs, in post-order, which is a valid order of execution."""
    nodes, _ = _build_map(graph.inputs, graph.outputs)
    return [
        node for node in nodes if not node.is_input and make_node_key(node.operation, index_of(node)) in graph._nodes
    ]


def index_of(node):
    """The index of a node among the calls of its operation."""
    return node.operation._inbound_nodes.index(node)


def fresh(graph):
    """Assignments of all invocations of a graph, without stages."""
    made = []
    for node in invocations(graph):
        nested = graph_of(node.operation)
        if nested is None:
            made.append(FunctionalLayerPipelineStageAssignment(node.operation, index_of(node)))
        else:
            made.append(FunctionalNestedModelPipelineStageAssignment(node.operation, index_of(node), fresh(nested)))
    return made


def fresh_sequential(model):
    """Assignments of the layers of a Sequential model, without stages."""
    return [SequentialLayerPipelineStageAssignment(layer) for layer in model.layers]


def fill(assignments, stage):
    """Puts all invocations into one stage."""
    for assignment in assignments:
        if isinstance(assignment, FunctionalNestedModelPipelineStageAssignment):
            fill(assignment.pipeline_stage_assignments, stage)
        else:
            assignment.pipeline_stage = stage


def leaves(assignments):
    """The assignments, with those of nested models in place of the nested model."""
    for assignment in assignments:
        if isinstance(assignment, FunctionalNestedModelPipelineStageAssignment):
            yield from leaves(assignment.pipeline_stage_assignments)
        else:
            yield assignment


def _scoped(graph):
    """Fresh assignments with the stages from PipelineStage scopes."""
    assignments = fresh(graph)
    for assignment, node in zip(assignments, invocations(graph), strict=True):
        stage = _stages.stage_of_call(node)
        if not isinstance(assignment, FunctionalNestedModelPipelineStageAssignment):
            assignment.pipeline_stage = stage
        elif stage is not None:
            fill(assignment.pipeline_stage_assignments, stage)
        else:
            assignment.pipeline_stage_assignments = _scoped(graph_of(node.operation))
    return assignments


def _require_all_scoped(found):
    missing = [assignment.layer.name for assignment in found if assignment.pipeline_stage is None]
    if missing:
        raise refused(
            ValueError,
            "All layers of a pipelined model must have an associated pipeline stage. However, "
            f"{missing[0]} has not been assigned to one.",
        )


def from_scopes(graph):
    """The assignments of a Functional model's layers from PipelineStage scopes; None if no scope gave a stage.

    Raises:
        ValueError: only some invocations have a stage.
    """
    assignments = _scoped(graph)
    if all(assignment.pipeline_stage is None for assignment in leaves(assignments)):
        return None
    _require_all_scoped(leaves(assignments))
    return assignments


def from_scopes_sequential(model):
    """The same for the layers of a Sequential model, by the scope in which they were made."""
    stages = [_stages.stage_of_layer(layer) for layer in model.layers]
    if all(stage is None for stage in stages):
        return None
    assignments = [
        SequentialLayerPipelineStageAssignment(layer, stage) for layer, stage in zip(model.layers, stages, strict=True)
    ]
    _require_all_scoped(assignments)
    require_sequential(model, assignments)
    return assignments


# Rules ----------------------------------------------------------------------------------------------------------------
def _require_stage(name, stage):
    if stage is None:
        raise refused(
            ValueError, f"Layer {name} has not been assigned a pipeline stage in `pipeline_stage_assignment`."
        )
    if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
        raise refused(
            ValueError, f"Layer {name} has the pipeline stage {stage!r}, which is not a non-negative integer."
        )


def _require_no_gaps(stages):
    found = sorted(set(stages))
    missing = sorted(set(range(found[-1] + 1)) - set(found))
    if missing:
        raise refused(
            ValueError,
            f"Pipeline stages in the graph need to be strictly increasing, found pipeline stages {_describe(found)}, "
            f"however the following pipeline stages are missing {_describe(missing)}.",
        )


def _require_list(assignments):
    if not isinstance(assignments, (list, tuple)):
        raise refused(ValueError, f"`pipeline_stage_assignment` needs to be a list, but got {assignments!r} instead.")


def _in_order(graph, assignments):
    """The assignments in the order of the graph's invocations, including nested ones."""
    _require_list(assignments)
    nodes = invocations(graph)
    for assignment in assignments:
        if not isinstance(assignment, _FUNCTIONAL_KINDS):
            raise refused(
                ValueError,
                "All elements of `pipeline_stage_assignment` need to be instances of "
                "`FunctionalLayerPipelineStageAssignment` or `FunctionalNestedModelPipelineStageAssignment`, but found "
                f"{assignment!r}.",
            )
    if len(assignments) != len(nodes):
        raise refused(
            ValueError,
            f"The size of the provided `pipeline_stage_assignment` ({len(assignments)}) does not match the total "
            f"number of invocations of layers in the model (currently {len(nodes)}). Each invocation of a layer in a "
            "model needs to be assigned to a pipeline stage (excluding input layers).",
        )
    by_call = {}
    for assignment in assignments:
        is_nested = isinstance(assignment, FunctionalNestedModelPipelineStageAssignment)
        called = assignment.nested_model if is_nested else assignment.layer
        by_call[id(called), assignment.node_index, is_nested] = assignment
    ordered = []
    for node in nodes:
        nested = graph_of(node.operation)
        found = by_call.get((id(node.operation), index_of(node), nested is not None))
        if found is None:
            raise refused(
                ValueError,
                f"Layer {node.operation.name} with node index {index_of(node)} has not been assigned a pipeline stage "
                "in `pipeline_stage_assignment`: the assignments do not match the layers of the model.",
            )
        if nested is not None:
            inner = _in_order(nested, found.pipeline_stage_assignments)
            found = FunctionalNestedModelPipelineStageAssignment(found.nested_model, found.node_index, inner)
        ordered.append(found)
    return ordered


def require_functional(graph, assignments):
    """The assignments in the order of the invocations. Checks that they form a pipeline.

    Raises:
        ValueError: they do not, for a reason in spec keras.md, section 2.
    """
    ordered = _in_order(graph, assignments)
    for leaf in leaves(ordered):
        _require_stage(f"{leaf.layer.name} with node index {leaf.node_index}", leaf.pipeline_stage)
    _require_no_gaps(leaf.pipeline_stage for leaf in leaves(ordered))
    made_in = {}
    for call in flatten(graph, ordered, whole_models=False)[0]:
        stage = call.stage
        if any(made_in.get(key, 0) > stage for key in call.inputs):
            raise refused(
                ValueError,
                f"Layer {call.node.operation.name} in pipeline stage {stage} has a dependency from a pipeline stage "
                "which has not yet been executed. Layers can only use outputs from current or previous pipeline "
                "stages.",
            )
        made_in.update(dict.fromkeys(call.outputs, stage))
    return ordered


def require_sequential(model, assignments):
    """SequentialLayerPipelineStageAssignments from ints or assignments. Checks that they form a pipeline.

    Raises:
        ValueError: they do not.
    """
    _require_list(assignments)
    layers = model.layers
    for assignment in assignments:
        is_number = isinstance(assignment, int) and not isinstance(assignment, bool)
        if not is_number and not isinstance(assignment, SequentialLayerPipelineStageAssignment):
            raise refused(
                ValueError,
                "All elements of `pipeline_stage_assignment` need to be instances of `int` or "
                f"`SequentialLayerPipelineStageAssignment`, but found {assignment!r}.",
            )
    if len(assignments) != len(layers):
        raise refused(
            ValueError,
            f"The size of the provided `pipeline_stage_assignment` ({len(assignments)}) does not match the number of "
            f"layers in the model (currently {len(layers)}).",
        )
    made, previous = [], 0
    for index, (layer, assignment) in enumerate(zip(layers, assignments, strict=True)):
        if isinstance(assignment, int):
            assignment = SequentialLayerPipelineStageAssignment(layer, assignment)
        if assignment.layer is not layer:
            raise refused(
                ValueError,
                f"The provided `pipeline_stage_assignment` does not match the order of the layers in the model: the "
                f"assignment at position {index} is for layer {assignment.layer.name}, but the layer there is "
                f"{layer.name}.",
            )
        stage = assignment.pipeline_stage
        _require_stage(layer.name, stage)
        if index == 0 and stage != 0:
            raise refused(
                ValueError,
                f"The first layer in a Sequential model needs to be assigned to pipeline stage 0, however layer "
                f"{layer.name} has been assigned to pipeline stage {stage}.",
            )
        if stage not in (previous, previous + 1):
            raise refused(
                ValueError,
                f"Layer {layer.name} has been assigned to pipeline stage {stage}, however the previous layer in the "
                f"Sequential model was assigned to pipeline stage {previous}. A layer in a Sequential model can only "
                "be assigned to the same pipeline stage as the previous layer or to the next pipeline stage.",
            )
        previous = stage
        made.append(assignment)
    return made


# What runs ------------------------------------------------------------------------------------------------------------
class Call:
    """An invocation in a pipeline. inputs, outputs: keys of its tensors, unique in the whole graph."""

    def __init__(self, node, stage, resolve):
        self.node = node
        self.stage = stage
        self.inputs = [resolve(tensor) for tensor in node.input_tensors]
        self.outputs = [resolve(tensor) for tensor in node.outputs]


class _Flattening:
    def __init__(self, whole_models):
        self.calls = []
        self._whole_models = whole_models
        self._names = {}  # a tensor at a nested model's boundary -> the same tensor outside of it

    def resolver(self, scope):
        def resolve(tensor):
            key = (scope, id(tensor))
            while key in self._names:
                key = self._names[key]
            return key

        return resolve

    def walk(self, graph, assignments, scope):
        from keras.src import tree

        resolve = self.resolver(scope)
        for number, (node, assignment) in enumerate(zip(invocations(graph), assignments, strict=True)):
            if not isinstance(assignment, FunctionalNestedModelPipelineStageAssignment):
                self.calls.append(Call(node, assignment.pipeline_stage, resolve))
                continue
            stages = {leaf.pipeline_stage for leaf in leaves([assignment])}
            if self._whole_models and len(stages) == 1:
                self.calls.append(Call(node, stages.pop(), resolve))
                continue
            nested, inner = graph_of(node.operation), (*scope, number)
            given = tree.flatten(node.arguments.args[0])
            for outside, inside in zip(given, nested.inputs, strict=True):
                self._names[inner, id(inside)] = resolve(outside)
            self.walk(nested, assignment.pipeline_stage_assignments, inner)
            inner_resolve = self.resolver(inner)
            for outside, inside in zip(node.outputs, nested.outputs, strict=True):
                self._names[scope, id(outside)] = inner_resolve(inside)


def flatten(graph, assignments, *, whole_models=True):
    """The invocations of a graph. A nested model that spans several stages is replaced by its own invocations.

    Args:
        whole_models: a nested model in a single stage stays one invocation.
    Returns: (Calls in post-order, a function from a tensor of the graph to its key).
    """
    flattening = _Flattening(whole_models)
    flattening.walk(graph, assignments, ())
    return flattening.calls, flattening.resolver(())


def functional_of_sequential(graph, assignments):
    """The stages of a Sequential model's layers as assignments of its graph."""
    stage_of = {id(assignment.layer): assignment.pipeline_stage for assignment in assignments}
    made = fresh(graph)
    for assignment in made:
        if isinstance(assignment, FunctionalNestedModelPipelineStageAssignment):
            fill(assignment.pipeline_stage_assignments, stage_of[id(assignment.nested_model)])
        else:
            assignment.pipeline_stage = stage_of[id(assignment.layer)]
    return made


# Files ----------------------------------------------------------------------------------------------------------------
def to_plain(assignments):
    """The stages by position, as lists for nested models."""
    return [
        to_plain(assignment.pipeline_stage_assignments)
        if isinstance(assignment, FunctionalNestedModelPipelineStageAssignment)
        else assignment.pipeline_stage
        for assignment in assignments
    ]


def from_plain(assignments, stages):
    """Sets the stages that to_plain() returned."""
    for assignment, stage in zip(assignments, stages, strict=True):
        if isinstance(assignment, FunctionalNestedModelPipelineStageAssignment):
            from_plain(assignment.pipeline_stage_assignments, stage)
        else:
            assignment.pipeline_stage = stage
    return assignments
