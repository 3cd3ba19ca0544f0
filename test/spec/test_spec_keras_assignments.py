"""Pipeline stages of Keras models: assignments, PipelineStage, errors, summaries. Source: spec keras.md, section 2."""

import copy
import pickle

import numpy as np
import pytest
from keras_models import functional, ipu, keras, layers, sequential, staged, under_strategy, undisturbed  # noqa: F401

spec = pytest.mark.spec


def refused(call, *texts, error=ValueError):
    with pytest.raises(error) as raised:
        call()
    for text in texts:
        assert text in str(raised.value)


def shared():
    """A layer that is called twice."""
    given = keras.Input((4,))
    twice = layers.Dense(4, name="twice")
    return keras.Model(given, layers.Dense(2, name="end")(twice(twice(given))))


@spec("keras/2/assignments")
def test_one_assignment_for_each_invocation_in_post_order():
    model = under_strategy(shared)
    found = model.get_pipeline_stage_assignment()
    assert [(a.layer.name, a.node_index, a.pipeline_stage) for a in found] == [
        ("twice", 0, None),
        ("twice", 1, None),
        ("end", 0, None),
    ]
    assert [[inbound.name for inbound in a.inbound_layers] for a in found][1:] == [["twice"], ["twice"]]
    assert isinstance(found[0], ipu.FunctionalLayerPipelineStageAssignment)


@spec("keras/2/assignments", "keras/2/set")
def test_get_returns_a_copy_of_the_list_that_was_set():
    model = staged(under_strategy(shared), [0, 1, 1])
    found = model.get_pipeline_stage_assignment()
    assert [a.pipeline_stage for a in found] == [0, 1, 1]
    found.clear()
    assert len(model.get_pipeline_stage_assignment()) == 3
    model.reset_pipeline_stage_assignment()
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [None] * 3


@spec("keras/2/assignments")
def test_nested_models_have_assignments_of_their_own():
    def outer():
        inner = keras.Sequential(
            [keras.Input((4,)), layers.Dense(4, name="i0"), layers.Dense(4, name="i1")], name="inner"
        )
        given = keras.Input((4,))
        return keras.Model(given, layers.Dense(2, name="end")(inner(given)))

    model = under_strategy(outer)
    nested, end = model.get_pipeline_stage_assignment()
    assert isinstance(nested, ipu.FunctionalNestedModelPipelineStageAssignment)
    assert (nested.nested_model.name, nested.node_index) == ("inner", 0)
    assert [a.layer.name for a in nested.pipeline_stage_assignments] == ["i0", "i1"]
    for stage, assignment in enumerate([*nested.pipeline_stage_assignments, end]):
        assignment.pipeline_stage = stage
    model.set_pipeline_stage_assignment([nested, end])
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert [line.split()[-1] for line in lines[4::2]] == ["0", "1", "2"]


@spec("keras/2/set")
def test_a_sequential_model_takes_numbers_or_assignments():
    model = under_strategy(sequential)
    model.set_pipeline_stage_assignment([0, 0, 1, 2])
    found = model.get_pipeline_stage_assignment()
    assert [(a.layer.name, a.pipeline_stage) for a in found] == [("s0", 0), ("s1", 0), ("s2", 1), ("s3", 2)]
    assert all(isinstance(a, ipu.SequentialLayerPipelineStageAssignment) for a in found)
    found[3].pipeline_stage = 1
    model.set_pipeline_stage_assignment(found)
    assert model.get_pipeline_stage_assignment()[3].pipeline_stage == 1


@spec("keras/2/errors")
def test_errors_of_functional_models():
    model = under_strategy(functional)
    found = model.get_pipeline_stage_assignment()
    set_ = model.set_pipeline_stage_assignment
    refused(
        lambda: set_(found[:3]),
        "The size of the provided `pipeline_stage_assignment` (3) does not match the total number of invocations of "
        "layers in the model (currently 4).",
    )
    refused(
        lambda: set_([0, 0, 0, 0]),
        "All elements of `pipeline_stage_assignment` need to be instances of `FunctionalLayerPipelineStageAssignment`",
    )
    refused(lambda: set_(found), "Layer first with node index 0 has not been assigned a pipeline stage")
    for assignment, stage in zip(found, [0, 2, 2, 4], strict=True):
        assignment.pipeline_stage = stage
    refused(
        lambda: set_(found),
        "Pipeline stages in the graph need to be strictly increasing, found pipeline stages 0, 2, 4, however the "
        "following pipeline stages are missing 1, 3",
    )
    for assignment, stage in zip(found, [0, 2, 1, 2], strict=True):
        assignment.pipeline_stage = stage
    refused(
        lambda: set_(found),
        "Layer both in pipeline stage 1 has a dependency from a pipeline stage which has not yet been executed",
    )
    found[0] = ipu.FunctionalLayerPipelineStageAssignment(found[1].layer, 0, 0)
    refused(lambda: set_(found), "Layer first with node index 0", "do not match the layers")
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [None] * 4


@spec("keras/2/errors")
def test_errors_of_sequential_models():
    model = under_strategy(sequential)
    set_ = model.set_pipeline_stage_assignment
    refused(
        lambda: set_([0, 1]),
        "`pipeline_stage_assignment` (2) does not match the number of layers in the model (currently 4)",
    )
    refused(lambda: set_(["0"] * 4), "All elements of `pipeline_stage_assignment` need to be instances of `int` or")
    refused(
        lambda: set_([1, 1, 1, 1]), "The first layer in a Sequential model needs to be assigned to pipeline stage 0"
    )
    refused(
        lambda: set_([0, 2, 2, 2]), "Layer s1 has been assigned to pipeline stage 2", "assigned to pipeline stage 0"
    )
    refused(lambda: set_([0, 1, 0, 0]), "Layer s2 has been assigned to pipeline stage 0")
    assignments = model.get_pipeline_stage_assignment()
    refused(lambda: set_(assignments), "Layer s0 has not been assigned a pipeline stage")
    refused(lambda: set_(assignments[::-1]), "does not match the order of the layers")


@spec("keras/2/PipelineStage")
def test_scopes_around_calls_count_more_than_those_around_construction():
    def make():
        given = keras.Input((4,))
        with keras.ipu.PipelineStage(1):
            late = layers.Dense(4, name="late")
            early = layers.Dense(4, name="early")
        with keras.ipu.PipelineStage(0):
            x = early(given)
        return keras.Model(given, late(x))

    model = under_strategy(make)
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [0, 1]


@spec("keras/2/PipelineStage")
def test_scopes_around_the_layers_of_a_sequential_model():
    def make():
        model = keras.Sequential()
        for stage in range(2):
            with ipu.PipelineStage(stage):
                model.add(layers.Dense(4))
        return model

    assert [a.pipeline_stage for a in under_strategy(make).get_pipeline_stage_assignment()] == [0, 1]


@spec("keras/2/PipelineStage")
def test_if_one_layer_has_a_stage_all_need_one():
    def make():
        given = keras.Input((4,))
        with ipu.PipelineStage(0):
            x = layers.Dense(4)(given)
        return keras.Model(given, layers.Dense(2, name="forgotten")(x))

    refused(
        lambda: under_strategy(make),
        "All layers of a pipelined model must have an associated pipeline stage. However, forgotten has not been "
        "assigned to one.",
    )


@spec("keras/2/PipelineStage")
def test_scopes_do_not_nest_and_leave_nothing_behind():
    def nest():
        with ipu.PipelineStage(0), ipu.PipelineStage(1):
            pass

    refused(nest, "cannot be nested")
    refused(lambda: ipu.PipelineStage(-1), "non-negative integer")
    model = under_strategy(functional)
    assert {a.pipeline_stage for a in model.get_pipeline_stage_assignment()} == {None}


@spec("keras/2/PipelineStage", "keras/4/scope")
def test_stages_outside_of_a_strategy_are_told():
    with pytest.warns(UserWarning, match="outside of a strategy's scope") as found, ipu.PipelineStage(0):
        layers.Dense(2)
    assert found[0].filename == __file__


@spec("keras/2/sequential_changes")
def test_changed_layers_need_a_new_assignment():
    model = under_strategy(sequential)
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    model.compile("sgd", "mse")
    model.add(layers.Dense(2))
    refused(lambda: model.predict([[0.0] * 6], verbose=0), "have changed since", error=RuntimeError)
    assert [a.pipeline_stage for a in model.get_pipeline_stage_assignment()] == [None] * 5
    model.pop()
    model.set_pipeline_stage_assignment([0, 0, 1, 1])
    assert len(model.get_pipeline_stage_assignment()) == 4


@spec("keras/2/overridden_call")
def test_an_overridden_call_cannot_be_pipelined():
    class Other(keras.Model):
        def call(self, x):
            return super().call(x) * 2

    given = keras.Input((4,))
    with ipu.IPUStrategy().scope():
        model = Other(given, layers.Dense(2)(given))
    refused(lambda: model.set_pipeline_stage_assignment([]), "overrides `call`", error=RuntimeError)


@spec("keras/2/saving")
@pytest.mark.parametrize("make, stages", [(functional, [0, 0, 1, 1]), (sequential, [0, 1, 1, 2])])
def test_files_keep_stages_and_settings(make, stages, tmp_path):
    model = staged(under_strategy(make), stages)
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=12,
        device_mapping=[1, 0, 2][: max(stages) + 1],
        gradient_accumulation_reduction_method="sum",
        pipeline_schedule=ipu.PipelineSchedule.Interleaved,
    )
    model.compile("sgd", "mse", steps_per_execution=12)
    model.save(tmp_path / "net.keras")
    with ipu.IPUStrategy().scope():
        again = keras.models.load_model(tmp_path / "net.keras")
    assert [a.pipeline_stage for a in again.get_pipeline_stage_assignment()] == stages
    assert again.get_config()["ipu"] == model.get_config()["ipu"]
    assert again.get_config()["ipu"]["accumulation"] == 12 and again.steps_per_execution == 12
    outside = keras.models.load_model(tmp_path / "net.keras", compile=False)
    assert type(outside) is (keras.Sequential if make is sequential else type(outside))
    assert not hasattr(outside, "set_pipelining_options")


@spec("keras/2/saving")
@pytest.mark.parametrize("make", [functional, sequential])
def test_files_are_ordinary_models_without_a_strategy(make, tmp_path):
    model = staged(under_strategy(make), [0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", "mse", steps_per_execution=4)
    model.save(tmp_path / "net.keras")
    outside = keras.models.load_model(tmp_path / "net.keras")
    assert outside.steps_per_execution == 1  # more is an error of Keras' own trainer
    x = np.ones((8, *outside.input_shape[1:]), "float32")
    y = np.zeros((8, *outside.output_shape[1:]), "float32")
    outside.fit(x, y, batch_size=2, verbose=0)
    outside.save(tmp_path / "plain.keras")
    for name, steps in (("net", 4), ("plain", 1)):
        with ipu.IPUStrategy().scope():
            again = keras.models.load_model(tmp_path / f"{name}.keras")
        assert again.steps_per_execution == steps


@spec("keras/2/saving")
@pytest.mark.parametrize("make", [functional, sequential])
def test_pickles_and_copies_keep_stages_and_weights(make):
    model = staged(under_strategy(make), [0, 0, 1, 1])
    model.compile("sgd", "mse", steps_per_execution=4)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert [a.pipeline_stage for a in again.get_pipeline_stage_assignment()] == [0, 0, 1, 1]
        assert again.steps_per_execution == 4
        assert all(map(np.array_equal, again.get_weights(), model.get_weights()))


FUNCTIONAL_SUMMARY = """\
Model: "net"
_____________________________________________________________________________________
Layer (type) (node index)         Input Layers                      Pipeline Stage   
=====================================================================================
first (Dense) (0)                 given                             0                
_____________________________________________________________________________________
second (Dense) (0)                first                             0                
_____________________________________________________________________________________
both (Add) (0)                    first                             1                
                                  second                                             
_____________________________________________________________________________________
last (Dense) (0)                  both                              1                
====================================================================================="""  # noqa: W291

SEQUENTIAL_SUMMARY = """\
Model: "stack"
_________________________________________________________________
Layer (type)                    Pipeline Stage                   
=================================================================
s0 (Dense)                      None                             
_________________________________________________________________
s1 (BatchNormalization)         None                             
_________________________________________________________________
s2 (Dense)                      None                             
_________________________________________________________________
s3 (Dense)                      None                             
================================================================="""  # noqa: W291


@spec("keras/2/summary")
def test_the_printed_summaries(capsys):
    model = staged(under_strategy(functional), [0, 0, 1, 1])
    lines = []
    model.print_pipeline_stage_assignment_summary(line_length=85, print_fn=lines.append)
    assert "\n".join(lines) == FUNCTIONAL_SUMMARY
    under_strategy(sequential).print_pipeline_stage_assignment_summary(line_length=65)
    assert capsys.readouterr().out == SEQUENTIAL_SUMMARY + "\n"


@spec("keras/2/summary")
def test_widths_and_long_names():
    model = under_strategy(functional)
    lines = []
    model.print_pipeline_stage_assignment_summary(print_fn=lines.append)
    assert {len(line) for line in lines[1:]} == {89}
    narrow = []
    model.print_pipeline_stage_assignment_summary(line_length=30, print_fn=narrow.append)
    assert {len(line) for line in narrow[1:]} == {30}
    assert narrow[4] == "first (Dens given       None  "
