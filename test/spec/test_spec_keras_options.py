"""Settings of Keras models and of the process, batches and log lines. Source: spec keras.md, sections 1 and 2."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from keras_models import (  # noqa: F401
    CLASSES,
    WIDTH,
    configure,
    cross_entropy,
    data,
    functional,
    ipu,
    keras,
    sequential,
    staged,
    under_strategy,
    undisturbed,
)
from support import warm

spec = pytest.mark.spec
X, Y = data()


def refused(call, *texts, error=ValueError):
    with pytest.raises(error) as raised:
        call()
    for text in texts:
        assert text in str(raised.value)


# The process ----------------------------------------------------------------------------------------------------------
@spec("keras/1/config")
def test_known_attributes_with_values_of_their_types():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 2
    config.device_connection.type = ipu.config.DeviceConnectionType.ON_DEMAND
    config.selection_order = ipu.SelectionOrder.SNAKE
    config.allow_recompute = True
    config.convolutions.poplar_options = {"partialsType": "half"}
    config.floating_point_behaviour.esr = True
    config.norms.experimental.distributed_batch_norm_replica_group_size = 2
    config.io_tiles.available_memory_proportion = 1
    config.configure_ipu_system()
    assert ipu.config.get_ipu_config().to_dict() == config.to_dict()
    again = ipu.IPUConfig.from_json(config.to_json())
    assert again.device_connection.type is ipu.DeviceConnectionType.ON_DEMAND
    assert again.to_dict() == config.to_dict() and again.io_tiles.available_memory_proportion == 1.0
    assert config.get_attribute_metadata("scheduling.algorithm")["default"] is ipu.SchedulingAlgorithm.CHOOSE_BEST
    ipu.config.reset_ipu_configuration()
    refused(ipu.config.get_ipu_config, "configure_ipu_system", error=RuntimeError)


@spec("keras/1/config")
@pytest.mark.parametrize(
    "path, value, error",
    [
        ("auto_select", 2, AttributeError),
        ("device_connection.kind", 2, AttributeError),
        ("convolutions", {}, AttributeError),
        ("auto_select_ipus", "2", TypeError),
        ("auto_select_ipus", True, TypeError),
        ("auto_select_ipus", ["2"], TypeError),
        ("allow_recompute", 1, TypeError),
        ("device_connection.type", "ALWAYS", TypeError),
        ("io_tiles.available_memory_proportion", "0.5", TypeError),
    ],
)
def test_other_attributes_and_types_are_refused(path, value, error):
    target = config = ipu.IPUConfig()
    *groups, name = path.split(".")
    for group in groups:
        target = getattr(target, group)
    refused(lambda: setattr(target, name, value), path.split(".")[-1], error=error)
    assert config.to_dict() == ipu.IPUConfig().to_dict()


@spec("keras/1/config")
def test_devices_are_selected_in_one_way():
    config = ipu.IPUConfig()
    config.auto_select_ipus, config.select_ipus = 2, [0, 1]
    refused(config.configure_ipu_system, "Only one of")
    config.auto_select_ipus, config.select_ipus = 0, -1
    refused(config.configure_ipu_system, "select_ipus")


@spec("keras/1/config")
def test_the_function_configures_as_the_method_does():
    config = ipu.IPUConfig()
    config.auto_select_ipus = 3
    ipu.config.configure_ipu_system(config)
    assert ipu.config.get_ipu_config().auto_select_ipus == ipu.IPUStrategy().num_replicas_in_sync == 3


@spec("keras/1/config")
@pytest.mark.parametrize("kind", ["NEVER", "PRE_COMPILE"])
def test_offline_devices_do_not_run(kind):
    config = ipu.IPUConfig()
    config.device_connection.type = ipu.DeviceConnectionType[kind]
    config.configure_ipu_system()
    model = under_strategy(sequential)
    refused(lambda: model.predict(X, verbose=0), f"DeviceConnectionType.{kind}", error=RuntimeError)


@spec("keras/1/import")
def test_keras_ipu_is_this_package():
    import keras.ipu
    import keras.ipu.config
    from keras.ipu.ipu_strategy import IPUStrategy

    assert keras.ipu is ipu and keras.ipu.config is ipu.config and IPUStrategy is ipu.IPUStrategy


def alone(code, arguments=(), **env):
    """Runs code in a process of its own."""
    path = os.pathsep.join([str(Path(ipu.__file__).parents[2]), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": path, **env}
    return subprocess.run([*warm.python(), "-c", code, *arguments], text=True, capture_output=True, env=env)


@spec("keras/1/import")
def test_abele_alone_loads_no_keras():
    done = alone("import sys, abele; abele.Options; print(any(name.startswith('keras') for name in sys.modules))")
    assert done.stdout == "False\n", done.stderr


@spec("keras/1/import")
def test_without_keras_the_import_says_what_to_install():
    done = alone("import sys; sys.modules['keras'] = None\ntry: import abele.keras\nexcept ImportError as e: print(e)")
    assert "needs Keras 3" in done.stdout and "pip install --no-deps keras" in done.stdout, done.stderr


@spec("keras/1/import")
@pytest.mark.parametrize(
    "version, backend, text",
    [("2.15.0", "torch", "found     Keras 2.15.0"), ("3.15.1", "jax", "found     the backend 'jax'")],
)
def test_another_keras_is_refused(version, backend, text, tmp_path):
    (tmp_path / "keras").mkdir()
    (tmp_path / "keras" / "__init__.py").write_text(
        f"import types\n__version__ = {version!r}\nconfig = types.SimpleNamespace(backend=lambda: {backend!r})\n"
    )
    done = alone(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\ntry: import abele.keras\nexcept ImportError as e: print(e)"
    )
    assert text in done.stdout, done.stderr


TENSORFLOW_PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
import tensorflow.keras as K
from tensorflow import keras
from tensorflow.keras.layers import Dense
from tensorflow.python import ipu
from tensorflow.python.ipu.config import IPUConfig

tf.random.set_seed(1)
config = IPUConfig()
config.auto_select_ipus = 2
config.configure_ipu_system()
with ipu.ipu_strategy.IPUStrategy().scope():
    given = keras.layers.Input((4,))
    with keras.ipu.PipelineStage(0):
        x = Dense(8)(given)
    with tf.keras.ipu.PipelineStage(1):
        x = Dense(2)(x)
    model = K.Model(given, x)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", "mse", steps_per_execution=4)
    rows = np.ones((16, 4), dtype=tf.float32)
    loss = model.fit(rows, np.zeros((16, 2), np.float32), batch_size=4, verbose=0).history["loss"]
print(sys.argv[1:], __name__, len(loss), [s["device"] for s in ipu.execution_report(model)["stages"]])
try:
    tf.data.Dataset
except AttributeError as error:
    print(error)
assert keras.layers.__spec__.name == "keras.layers"
sys.exit(3)
"""


@spec("keras/1/import")
def test_programs_for_tensorflow_run_as_they_are(tmp_path):
    (tmp_path / "program.py").write_text(TENSORFLOW_PROGRAM)
    done = alone(
        "import runpy, sys; sys.argv = ['-m', sys.argv[1], '--rate', '2'];"
        "runpy.run_module('abele.tensorflow', run_name='__main__', alter_sys=True)",
        arguments=[str(tmp_path / "program.py")],
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "['--rate', '2'] __main__ 1 [0, 1]", done.stderr
    assert "tensorflow.data is not there" in lines[1] and done.returncode == 3


# A strategy -----------------------------------------------------------------------------------------------------------
@spec("keras/1/strategy", "keras/4/scope")
def test_only_models_made_in_a_scope_change():
    before = keras.Model.__new__, keras.src.models.functional.Functional.__init__, keras.Sequential.from_config.__func__
    outside = sequential()
    strategy = ipu.IPUStrategy()
    with strategy.scope() as entered:
        assert entered is strategy and ipu.ipu_strategy.get_strategy() is strategy and ipu.ipu_strategy.has_strategy()
        with ipu.IPUStrategy().scope():
            inside = sequential()
        inside_too = functional()
    after = keras.Model.__new__, keras.src.models.functional.Functional.__init__, keras.Sequential.from_config.__func__
    assert after == before and not ipu.ipu_strategy.has_strategy()
    assert type(outside) is keras.Sequential and isinstance(inside, keras.Sequential)
    for name in ("set_pipelining_options", "get_pipeline_stage_assignment", "set_gradient_accumulation_options"):
        assert hasattr(inside, name) and hasattr(inside_too, name)
        with pytest.raises(AttributeError):
            getattr(outside, name)
        assert not hasattr(keras.Model, name)
    with pytest.raises(AttributeError):
        functional().set_pipelining_options  # noqa: B018


class FromTensors(keras.Model):
    """A subclass that is a graph of layers."""

    def __init__(self, units, **more):
        given = keras.Input((WIDTH,))
        super().__init__(given, keras.layers.Dense(units)(given), **more)


class FromNumbers(keras.Model):
    """A subclass with two arguments, which are no tensors."""

    def __init__(self, units, classes):
        super().__init__()
        self.first, self.last = keras.layers.Dense(units), keras.layers.Dense(classes)

    def call(self, x):
        return self.last(self.first(x))


@spec("keras/1/strategy", "keras/4/scope")
def test_subclasses_of_models_stay_what_they_are():
    with ipu.IPUStrategy().scope():
        graph, whole = FromTensors(CLASSES), FromNumbers(4, CLASSES)
    functional_class = keras.src.models.functional.Functional
    assert isinstance(graph, FromTensors) and isinstance(graph, functional_class)
    assert isinstance(whole, FromNumbers) and not isinstance(whole, functional_class)
    assert type(graph).__name__ == "FromTensors" and type(FromNumbers(4, CLASSES)) is FromNumbers
    assert len(graph.get_pipeline_stage_assignment()) == 1
    for model in (graph, whole):
        model.compile("sgd", cross_entropy(), steps_per_execution=6)
        assert model.fit(X, Y, batch_size=8, verbose=0).history["loss"][0] > 0


@spec("keras/1/strategy")
def test_replicas_in_sync_are_the_devices():
    assert ipu.IPUStrategy().num_replicas_in_sync == 1
    configure(4)
    assert ipu.IPUStrategy().num_replicas_in_sync == 4


# Options --------------------------------------------------------------------------------------------------------------
@spec("keras/2/gradient_accumulation", "keras/1/methods")
def test_gradient_accumulation_steps_are_positive_integers():
    model = under_strategy(sequential)
    for method in (model.set_pipelining_options, model.set_gradient_accumulation_options):
        for wrong in (-1, 0, 2.0, True):
            refused(
                lambda method=method, wrong=wrong: method(gradient_accumulation_steps_per_replica=wrong),
                f"Expected `gradient_accumulation_steps_per_replica` to be a positive integer, but got {wrong} instead",
            )


@spec("keras/2/device_mapping")
def test_a_device_mapping_is_a_list_of_integers_with_one_for_each_stage():
    model = staged(under_strategy(sequential), [0, 0, 1, 1])
    for wrong in ((0, 1), ["0", "1"], [0, 1.0], 1):
        refused(
            lambda wrong=wrong: model.set_pipelining_options(device_mapping=wrong),
            "Expected `device_mapping` to be a list of integers",
        )
    model.set_pipelining_options(device_mapping=[0, 1, 2])
    refused(lambda: model.predict(X, verbose=0), "`device_mapping` (3)", "pipeline stages of the model (2)")


@spec("keras/2/refused_arguments")
def test_arguments_of_other_interfaces_are_refused_with_a_hint():
    model = under_strategy(sequential)
    for name in ("gradient_accumulation_count", "repeat_count", "batch_serialization_iterations"):
        refused(lambda name=name: model.set_pipelining_options(**{name: 2}), f"Found `{name}` key")
    refused(lambda: model.set_pipelining_options(pipeline_schedule="Grouped"), "PipelineSchedule", error=TypeError)
    refused(lambda: model.set_infeed_queue_options(prefetch_depth=0), "`prefetch_depth` to be a positive integer")
    model.set_infeed_queue_options(prefetch_depth=2)
    model.set_outfeed_queue_options(buffer_depth=2)
    refused(model.export_for_ipu_serving, "not supported", error=NotImplementedError)


@spec("keras/2/reduction")
def test_reduction_methods_by_name():
    method = ipu.GradientAccumulationReductionMethod
    assert [method.parse(text) for text in ("sum", "Mean", "RUNNING_MEAN")] == list(method)
    refused(lambda: method.parse("median"), "median")
    refused(lambda: method.parse(1), error=TypeError)


@spec("keras/2/gradient_accumulation")
@pytest.mark.parametrize(
    "schedule, steps, texts",
    [
        (None, None, ["`gradient_accumulation_steps_per_replica` has not been set"]),
        ("Grouped", 6, ["(6) needs to be divisible by two times the number of pipeline stages (2)"]),
        ("Interleaved", 3, ["(3) needs to be divisible by the number of pipeline stages (2)"]),
    ],
)
def test_accumulation_has_to_fit_the_schedule(schedule, steps, texts):
    model = staged(under_strategy(sequential), [0, 0, 1, 1])
    schedule = schedule and ipu.PipelineSchedule[schedule]
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=steps, pipeline_schedule=schedule)
    model.compile("sgd", cross_entropy(), steps_per_execution=steps or 1)
    refused(lambda: model.fit(X, Y, verbose=0, batch_size=8), *texts)


# Batches --------------------------------------------------------------------------------------------------------------
def compiled(steps, accumulation=1):
    model = under_strategy(sequential)
    model.set_gradient_accumulation_options(accumulation)
    model.compile("sgd", cross_entropy(), steps_per_execution=steps)
    return model


@spec("keras/2/batches")
def test_data_divides_into_whole_executions():
    model = compiled(4)
    refused(lambda: model.fit(X, Y, batch_size=7, verbose=0), "(48) must be a multiple of the batch size (7)")
    refused(lambda: model.evaluate(X, Y, batch_size=8, verbose=0), "(6) must be a multiple of steps_per_execution (4)")
    refused(lambda: model.predict(X[:40], batch_size=8, verbose=0), "batches of an epoch (5)")
    refused(lambda: compiled(3, 2).fit(X, Y, batch_size=8, verbose=0), "3 steps per execution", "multiple of 2")
    refused(
        lambda: model.fit(X[:32], Y[:32], batch_size=8, verbose=0, validation_data=(X[:41], Y[:41])), "samples (41)"
    )


@spec("keras/2/batches", "keras/2/log_lines")
def test_executions_longer_than_an_epoch_are_cut_with_a_warning(caplog):
    model = compiled(100, 2)
    with caplog.at_level(logging.WARNING, "abele.keras"):
        model.fit(X, Y, batch_size=8, verbose=0)
    assert "100 steps per execution" in caplog.text and "truncated to 6" in caplog.text
    assert int(model.optimizer.iterations) == 3
    assert model.steps_per_execution == 100


@spec("keras/2/batches")
def test_data_of_unknown_length():
    model = compiled(4, 2)
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)]
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit((batch for batch in batches), verbose=0)
    assert int(model.optimizer.iterations) == 2  # the fifth batch is no whole update


@spec("keras/2/log_lines")
def test_what_the_log_says(caplog):
    def lines(model, batch_size):
        caplog.clear()
        with caplog.at_level(logging.INFO, "abele.keras"):
            model.fit(X, Y, batch_size=batch_size, verbose=0)
        return [record.getMessage() for record in caplog.records]

    assert lines(compiled(1), 8)[0].startswith(
        "The model `stack` has been configured with only 1 steps per execution. Consider increasing the value"
    )
    assert lines(compiled(6, 3), 8) == [
        "Training is accumulating 3 batches per optimizer step, your effective batch size is 24."
    ]
    configure(2)
    assert lines(compiled(2), 12)[-1] == "Training is distributed across 2 replicas, your effective batch size is 24."


@spec("keras/2/replicas")
def test_devices_divide_into_replicas():
    configure(3)
    model = staged(under_strategy(sequential), [0, 0, 1, 1])
    refused(lambda: model.predict(X, verbose=0), "needs 2 IPUs for each replica, however 3 are configured")


@spec("keras/4/out_of_scope")
def test_what_compiled_programs_cannot_do_is_refused():
    class Own(keras.Model):
        def train_step(self, data):
            return {}

    class Whole(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(CLASSES)

        def call(self, x):
            return self.dense(x)

    given = keras.Input((WIDTH,))
    with ipu.IPUStrategy().scope():
        own, whole = Own(given, keras.layers.Dense(CLASSES)(given)), Whole()
    own.compile("sgd", cross_entropy())
    refused(lambda: own.fit(X, Y, verbose=0), "overrides `train_step`", error=NotImplementedError)
    refused(whole.get_pipeline_stage_assignment, "Functional or a Sequential", error=NotImplementedError)
    eager = compiled(1)
    eager.compile("sgd", cross_entropy(), run_eagerly=True)
    refused(lambda: eager.fit(X, Y, batch_size=8, verbose=0), "run_eagerly")
