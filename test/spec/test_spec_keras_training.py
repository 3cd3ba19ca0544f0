"""fit, evaluate and predict of Keras models run as compiled pipelines, with its numbers. Source: spec keras.md, 2, 4.

Bit for bit where nothing is said: the device sums in the order of Keras' own gradient accumulation.
"""

import re

import numpy as np
import poptorch
import pytest
import torch
from keras_models import (  # noqa: F401
    CLASSES,
    ROWS,
    WIDTH,
    X,
    Y,
    configure,
    cross_entropy,
    data,
    functional,
    ipu,
    keras,
    largest_difference,
    layers,
    plain,
    require_same,
    sequential,
    staged,
    trained,
    under_strategy,
    undisturbed,
)

spec = pytest.mark.spec
optimizers = keras.optimizers


# Numbers --------------------------------------------------------------------------------------------------------------
OPTIMIZERS = {
    "SGD": lambda **more: optimizers.SGD(0.1, **more),
    "Nesterov": lambda **more: optimizers.SGD(0.1, momentum=0.9, nesterov=True, **more),
    "Adam": lambda **more: optimizers.Adam(0.01, amsgrad=True, **more),
    "AdamW": lambda **more: optimizers.AdamW(0.01, weight_decay=0.1, **more),
    "RMSprop": lambda **more: optimizers.RMSprop(0.01, centered=True, momentum=0.5, **more),
    "Lamb": lambda **more: optimizers.Lamb(0.01, **more),
    "Lion": lambda **more: optimizers.Lion(0.01, clipnorm=0.5, **more),
    "Adagrad": lambda **more: optimizers.Adagrad(0.1, global_clipnorm=0.5, **more),
}


@spec("keras/4/optimizers", "keras/4/numbers", "keras/4/execution")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_of_keras_with_its_numbers(name):
    result = trained(sequential, OPTIMIZERS[name], [0, 0, 1, 1], compiled={"metrics": ["accuracy"]})
    model = require_same(result)
    assert int(model.optimizer.iterations) == 2 * ROWS // 16
    assert list(result[1]) == ["accuracy", "loss"]


@spec("keras/4/numbers", "keras/2/gradient_accumulation")
@pytest.mark.parametrize(
    "accumulation, schedule", [(12, "Grouped"), (6, "Interleaved"), (3, "Sequential"), (1, "Sequential")]
)
def test_schedules_do_not_change_numbers(accumulation, schedule):
    result = trained(
        functional,
        lambda **more: optimizers.Adam(0.01, **({} if accumulation == 1 else more)),
        [0, 1, 1, 2],
        accumulation=accumulation,
        options={
            "pipeline_schedule": ipu.PipelineSchedule[schedule],
            "recomputation_mode": ipu.RecomputationMode.RecomputeThenBackpropagate,
        },
    )
    require_same(result)


@spec("keras/4/unpipelined")
def test_models_without_stages_take_one_device():
    model = require_same(trained(sequential, OPTIMIZERS["Adam"], None, accumulation=3))
    assert [stage["device"] for stage in ipu.execution_report(model)["stages"]] == [0]


class Subclassed(keras.Model):
    """No graph of layers."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(8, activation="relu", kernel_initializer=keras.initializers.GlorotUniform(1))
        self.last = layers.Dense(CLASSES, kernel_initializer=keras.initializers.GlorotUniform(2))

    def call(self, x):
        return self.last(self.first(x))


@spec("keras/4/unpipelined")
def test_subclassed_models_run_as_a_whole():
    require_same(trained(Subclassed, OPTIMIZERS["SGD"], None, accumulation=2))


@spec("keras/4/trace", "keras/2/device_mapping")
@pytest.mark.parametrize("mapping, devices", [(None, [0, 1, 2]), ([2, 0, 1], [2, 0, 1]), ([0, 1, 0], [0, 1, 0])])
def test_stage_k_runs_on_its_device(mapping, devices):
    options = {"device_mapping": mapping, "pipeline_schedule": ipu.PipelineSchedule.Interleaved}
    model = require_same(trained(functional, OPTIMIZERS["SGD"], [0, 1, 1, 2], accumulation=6, options=options))
    stages = ipu.execution_report(model)["stages"]
    assert [stage["device"] for stage in stages] == devices
    assert all(stage["busy_ns"] > 0 for stage in stages)
    model.predict(X, batch_size=4, verbose=0)
    assert [stage["device"] for stage in ipu.execution_report(model, "predict")["stages"]] == devices
    with pytest.raises(ValueError, match="has not run in the mode 'test'"):
        ipu.execution_report(model, "test")
    with pytest.raises(ValueError, match="no mode 'fit'"):
        ipu.execution_report(model, "fit")


def test_a_stage_holds_the_work_of_its_layers():
    """The program of a stage reads the weights of the layers that were assigned to it."""
    model = require_same(trained(functional, OPTIMIZERS["SGD"], [0, 1, 1, 2], accumulation=6))
    text = model._abele_keras.executions["train"].session.graphText()
    number_of = dict(re.findall(r'input (%\d+) "(p\d+)"', text))
    names = {f"p{index}": variable.path for index, variable in enumerate(model.trainable_variables)}
    stages = {}
    for number, name in number_of.items():
        found = re.findall(rf"= aten\.\w[^\n]*{number}\b[^\n]*stage=(\d+)", text)
        stages[names[name]] = set(map(int, found))
    expected = {"first": {0}, "second": {1}, "last": {2}}
    assert stages == {f"{layer}/{kind}": of for layer, of in expected.items() for kind in ("kernel", "bias")}


@spec("keras/4/execution")
def test_evaluate_and_predict_equal_keras():
    reference, model = plain(sequential), staged(under_strategy(sequential), [0, 1, 1, 1])
    for each in (reference, model):
        each.compile("sgd", cross_entropy(), metrics=["accuracy"])
    model.steps_per_execution = 4
    expected = reference.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True)
    assert model.evaluate(X, Y, batch_size=4, verbose=0, return_dict=True) == expected
    assert np.array_equal(model.predict(X, batch_size=4, verbose=0), reference.predict(X, batch_size=4, verbose=0))
    assert torch.equal(model(X), reference(X))  # called directly, a model ignores its stages


@spec("keras/2/reduction")
def test_sum_adds_the_gradients_up():
    def accumulated(method, rate):
        model = under_strategy(sequential)
        model.set_gradient_accumulation_options(4, gradient_accumulation_reduction_method=method)
        model.compile(optimizers.SGD(rate), cross_entropy(), steps_per_execution=4)
        model.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
        return model

    mean = accumulated("mean", 0.25)
    assert largest_difference(mean, accumulated("SUM", 0.0625)) == 0  # powers of two scale exactly
    assert largest_difference(mean, accumulated(ipu.GradientAccumulationReductionMethod.RUNNING_MEAN, 0.25)) == 0


@spec("keras/2/replicas", "keras/2/batches")
@pytest.mark.parametrize("stages", [None, [0, 1, 1, 1]])
def test_replicas_share_an_update(stages):
    """Sums of replicas are added at the end: another order of the same numbers, so a tolerance."""

    def make():
        model = sequential()
        model.pop()
        model.pop()
        model.pop()
        model.add(layers.Dense(8, name="r1"))
        model.add(layers.Dense(8, name="r2"))
        model.add(layers.Dense(CLASSES, name="r3"))
        return model

    devices, accumulation = (4, 4) if stages else (2, 2)
    configure(devices)
    reference = plain(make)
    reference.compile(optimizers.SGD(0.1, gradient_accumulation_steps=2 * accumulation), cross_entropy())
    model = under_strategy(make)
    if stages:
        staged(model, stages)
    model.set_gradient_accumulation_options(accumulation)
    model.compile(optimizers.SGD(0.1), cross_entropy(), steps_per_execution=accumulation)
    x, y = X[:32], Y[:32]
    expected = reference.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    found = model.fit(x, y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-6)
    assert largest_difference(reference, model) < 1e-6
    stages_run = ipu.execution_report(model)["stages"]
    assert {stage["replica"] for stage in stages_run} == {0, 1}
    assert sorted({stage["device"] for stage in stages_run}) == list(range(devices))
    assert np.allclose(model.predict(x, batch_size=4, verbose=0), reference.predict(x, batch_size=4, verbose=0))


# Models ---------------------------------------------------------------------------------------------------------------
def branches():
    """Two inputs, one of them masked words; a layer called twice; two outputs; a regulariser of activations."""
    a, b = keras.Input((WIDTH,), name="a"), keras.Input((5,), dtype="int32", name="b")
    words = layers.LSTM(4)(layers.Embedding(10, 4, mask_zero=True)(b))
    twice = layers.Dense(WIDTH, activation="tanh", name="twice")
    x = layers.Concatenate()([twice(twice(a)), words])
    one = layers.Dense(CLASSES, name="one")(x)
    two = layers.Dense(2, name="two", activity_regularizer="l2", kernel_regularizer="l1")(x)
    return keras.Model([a, b], [one, layers.Rescaling(0.5, name="half")(keras.ops.abs(two))])


@spec("keras/4/metrics", "keras/2/assignments")
def test_several_inputs_and_outputs():
    words = np.random.default_rng(3).integers(0, 10, (ROWS, 5))
    words[:, 4:] = 0
    target = np.random.default_rng(4).standard_normal((ROWS, 2)).astype("float32")
    number = len(under_strategy(branches).get_pipeline_stage_assignment())
    result = trained(
        branches,
        OPTIMIZERS["Adam"],
        [0] * (number - 5) + [1] * 5,
        x=[X, words],
        y=[Y, target],
        loss=[cross_entropy(), "mse"],
        compiled={"metrics": [["accuracy"], ["mae"]], "loss_weights": [1.0, 0.5]},
    )
    model = require_same(result)
    assert len(result[1]) == 5
    found = model.predict([X, words], batch_size=4, verbose=0)
    expected = result[2].predict([X, words], batch_size=4, verbose=0)
    assert all(np.array_equal(a, b) for a, b in zip(found, expected, strict=True))


def nested():
    """A model whose inner models span several stages."""
    inner = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8, name="i0"), layers.Dense(8, name="i1")])
    between = keras.Input((8,))
    left = layers.Dense(4, name="f0")(between)
    fork = keras.Model(between, [left, layers.Dense(4, name="f1")(left)])
    given = keras.Input((WIDTH,))
    return keras.Model(given, layers.Dense(CLASSES, name="end")(layers.Add()(fork(inner(given)))))


@spec("keras/4/nested")
def test_nested_models_are_cut_inside():
    reference, model = plain(nested), under_strategy(nested)
    first, second, add, end = assignments = model.get_pipeline_stage_assignment()
    for stage, assignment in zip(
        [0, 1, 1, 2], [*first.pipeline_stage_assignments, *second.pipeline_stage_assignments], strict=True
    ):
        assignment.pipeline_stage = stage
    add.pipeline_stage = end.pipeline_stage = 2
    model.set_pipeline_stage_assignment(assignments)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=6)
    reference.compile(optimizers.Adam(0.01, gradient_accumulation_steps=6), cross_entropy())
    model.compile(optimizers.Adam(0.01), cross_entropy(), steps_per_execution=6)
    histories = [each.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history for each in (reference, model)]
    assert histories[0] == histories[1] and largest_difference(reference, model) == 0
    assert len(ipu.execution_report(model)["stages"]) == 3


@spec("keras/4/execution")
def test_a_convolutional_network_with_statistics():
    def make():
        return keras.Sequential(
            [
                keras.Input((2, 3, 1)),
                layers.Conv2D(4, 2, padding="same"),
                layers.BatchNormalization(),
                layers.MaxPooling2D((1, 2)),
                layers.SeparableConv2D(4, 1),
                layers.GlobalAveragePooling2D(),
                layers.Dense(CLASSES),
            ]
        )

    require_same(trained(make, OPTIMIZERS["SGD"], [0, 0, 0, 1, 1, 1], x=X.reshape(ROWS, 2, 3, 1)))


@spec("keras/4/execution")
def test_a_sequential_model_that_fit_builds():
    def make():
        return keras.Sequential(
            [layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(seed)) for seed in range(3)]
        )

    require_same(trained(make, OPTIMIZERS["SGD"], [0, 0, 1]))


@spec("keras/4/random_numbers")
def test_dropout_draws_for_every_micro_batch():
    def make():
        return keras.Sequential([keras.Input((WIDTH,)), layers.Dense(64, use_bias=False), layers.Dropout(0.5)])

    def losses(seed):
        model = staged(under_strategy(make, seed), [0, 1])
        model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
        model.compile(optimizers.SGD(0.0), "mse", steps_per_execution=4)
        found = []
        note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: found.append(logs["loss"]))
        rows = np.repeat(X[:1], 32, 0)  # without dropout all micro-batches would have one loss
        model.fit(rows, np.zeros((32, 64), "float32"), batch_size=2, epochs=1, verbose=0, callbacks=[note])
        assert np.ptp(model.predict(rows, batch_size=2, verbose=0), axis=0).max() == 0
        return found

    first = losses(1)
    assert len(set(first)) == len(first) == 4
    assert losses(1) == first and losses(2) != first


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_losses_that_look_at_the_labels(loss):
    """They convert labels that are all 0 or 1."""

    def make():
        return keras.Sequential([keras.Input((WIDTH,)), layers.Dense(8), layers.Dense(1)])

    labels = np.concatenate([Y[:16] % 2, 2 * (Y[16:32] % 2) - 1]).astype("float32")[:, None]
    configure(2)
    model, reference = staged(under_strategy(make), [0, 1]), plain(make)
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", loss, steps_per_execution=4)
    reference.compile(optimizers.SGD(0.01, gradient_accumulation_steps=4), loss)
    for each in (model, reference):
        each.fit(X[:32], labels, batch_size=4, shuffle=False, verbose=0)
    assert largest_difference(model, reference) == 0


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_classifier_warns_of_nothing(activation, caplog):
    def make():
        given = keras.Input((WIDTH,))
        both = layers.Concatenate()([layers.Dense(4)(given), layers.Dense(4)(given)])
        return keras.Model(given, layers.Dense(CLASSES, activation=activation)(both))

    configure(2)
    model = staged(under_strategy(make), [0, 0, 0, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"], steps_per_execution=4)
    model.fit(X, Y, batch_size=4, verbose=0)
    model.evaluate(X, Y, batch_size=4, verbose=0)
    model.predict(X, batch_size=4, verbose=0)
    assert not [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@spec("keras/4/random_numbers")
def test_a_seeded_layer_draws_from_the_device(caplog):
    def make():
        return keras.Sequential([keras.Input((WIDTH,)), layers.Dropout(0.5, seed=3), layers.Dense(CLASSES)])

    model = under_strategy(make)
    model.compile("sgd", cross_entropy(), steps_per_execution=4)
    model.fit(X[:32], Y[:32], batch_size=8, verbose=0)
    assert "A seed of a layer has no effect in a compiled model" in caplog.text


# Around the steps -----------------------------------------------------------------------------------------------------
@spec("keras/4/callbacks")
def test_callbacks_validation_and_weights_of_samples():
    def fit():
        return {
            "callbacks": [
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
                keras.callbacks.EarlyStopping(monitor="loss", patience=0, restore_best_weights=True),
            ],
            "class_weight": {0: 1.0, 1: 2.0, 2: 0.5},
            "validation_data": (X[:16], Y[:16]),
        }

    result = trained(
        sequential, OPTIMIZERS["SGD"], [0, 1, 1, 1], fit=fit(), compiled={"weighted_metrics": ["accuracy"]}
    )
    require_same(result)
    assert {"loss", "val_loss", "accuracy", "val_accuracy", "learning_rate"} == set(result[1])


@spec("keras/4/callbacks")
def test_batches_are_counted_by_executions():
    model = staged(under_strategy(sequential), [0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.compile("sgd", cross_entropy(), steps_per_execution=4)
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(batch),
        on_train_batch_end=lambda batch, logs: seen.append(batch),
    )
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[note])
    assert seen == [0, 3, 4, 7, 8, 11]


@spec("keras/4/callbacks")
def test_asynchronous_callbacks_hear_of_every_micro_batch():
    class Notes(keras.callbacks.Callback):
        def note(self, name, batch, logs):
            heard.append((name, batch, *(() if logs is None else ({n: np.array(v) for n, v in logs.items()},))))

        def __getattribute__(self, name):
            if name.startswith("on_") and name.endswith(("_batch_begin", "_batch_end")):
                return lambda batch, logs=None: self.note(name, batch, logs)
            return super().__getattribute__(name)

    def run(each):
        each.compile(optimizers.SGD(0.0), cross_entropy(), metrics=["accuracy"], steps_per_execution=steps)
        heard.clear()
        common = {"batch_size": 4, "verbose": 0, "callbacks": [Notes()]}
        history = each.fit(X[:32], Y[:32], epochs=2, shuffle=False, validation_data=(X[:16], Y[:16]), **common).history
        each.evaluate(X[:16], Y[:16], **common)
        each.predict(X[:16], **common)
        return list(heard), history

    heard, steps = [], 1
    reference, history = run(plain(sequential))
    model, steps = staged(under_strategy(sequential), [0, 1, 1, 1]), 4
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    model.set_asynchronous_callbacks(True)
    found, same = run(model)
    assert same == history
    assert [(name, batch) for name, batch, *_ in found] == [(name, batch) for name, batch, *_ in reference]
    for one, other in zip(found, reference, strict=True):
        for ours, theirs in zip(one[2:], other[2:], strict=True):
            assert ours.keys() == theirs.keys() and all(np.array_equal(ours[name], theirs[name]) for name in ours)
    model.set_asynchronous_callbacks(asynchronous=False)
    assert [batch for name, batch, *_ in run(model)[0] if name == "on_train_batch_end"] == [3, 7, 3, 7]
    with pytest.raises(TypeError, match="`asynchronous` to be a bool"):
        model.set_asynchronous_callbacks("yes")


@spec("keras/4/execution")
def test_other_kinds_of_data():
    rows = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    reference, model = plain(sequential), under_strategy(sequential)
    model.set_gradient_accumulation_options(2)
    reference.compile(optimizers.SGD(0.1, gradient_accumulation_steps=2), cross_entropy())
    model.compile(optimizers.SGD(0.1), cross_entropy(), steps_per_execution=4)
    for each in (reference, model):
        each.fit(torch.utils.data.DataLoader(rows, batch_size=4), epochs=1, verbose=0)
        each.fit(torch.tensor(X), torch.tensor(Y), batch_size=4, steps_per_epoch=8, shuffle=False, verbose=0)
        each.fit(X, Y, batch_size=4, validation_split=1 / 3, shuffle=False, verbose=0)
    assert largest_difference(reference, model) == 0


@spec("keras/4/execution", "keras/2/gradient_accumulation")
def test_single_batches():
    reference, model = plain(functional), staged(under_strategy(functional), [0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    for each in (reference, model):
        each.compile(optimizers.SGD(0.1), cross_entropy(), metrics=["accuracy"])
    found, expected = (each.train_on_batch(X[:16], Y[:16], return_dict=True) for each in (model, reference))
    assert int(model.optimizer.iterations) == 1
    assert found["accuracy"] == expected["accuracy"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)  # the mean of four means
    assert largest_difference(reference, model) < 1e-6
    assert model.test_on_batch(X, Y) == pytest.approx(reference.test_on_batch(X, Y), rel=1e-5)
    assert np.allclose(model.predict_on_batch(X), reference.predict_on_batch(X), atol=1e-6)
    with pytest.raises(ValueError, match="batch of 15 samples cannot be cut into 4"):
        model.train_on_batch(X[:15], Y[:15])


@spec("keras/4/execution")
def test_weights_that_change_between_calls_count():
    model = staged(under_strategy(sequential), [0, 0, 1, 1])
    model.compile("sgd", cross_entropy())
    before = model.predict(X, batch_size=4, verbose=0)
    model.set_weights([np.zeros_like(value) for value in model.get_weights()])
    assert not model.predict(X, batch_size=4, verbose=0).any() and before.any()


@spec("keras/4/execution")
def test_frozen_layers_stay():
    def make():
        model = sequential()
        model.layers[0].trainable = False
        return model

    result = trained(make, OPTIMIZERS["Adam"], [0, 0, 1, 1])
    model = require_same(result)
    start = plain(make)
    assert np.array_equal(model.layers[0].kernel, start.layers[0].kernel)
    assert not np.array_equal(model.layers[2].kernel, start.layers[2].kernel)


@spec("keras/2/saving")
def test_training_goes_on_from_a_file(tmp_path):
    reference, model = plain(sequential), staged(under_strategy(sequential), [0, 0, 1, 1])
    model.set_pipelining_options(gradient_accumulation_steps_per_replica=4)
    reference.compile(optimizers.Adam(0.01, gradient_accumulation_steps=4), cross_entropy())
    model.compile(optimizers.Adam(0.01), cross_entropy(), steps_per_execution=4)
    for each in (reference, model):
        each.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    model.save(tmp_path / "half.keras")
    with ipu.IPUStrategy().scope():
        again = keras.models.load_model(tmp_path / "half.keras")
    for each in (reference, again):
        each.fit(X, Y, batch_size=4, shuffle=False, verbose=0)
    assert largest_difference(reference, again) == 0
    assert len(ipu.execution_report(again)["stages"]) == 2


@spec("keras/4/execution")
def test_compiling_again_changes_the_loss():
    model = under_strategy(sequential)
    model.compile("sgd", "mse")
    target = np.zeros((ROWS, CLASSES), "float32")
    squared = model.evaluate(X, target, batch_size=4, verbose=0)
    model.compile("sgd", "mae")
    assert model.evaluate(X, target, batch_size=4, verbose=0) != squared


@spec("keras/4/numbers")
def test_mixed_precision_with_a_scaled_loss():
    """float16 layers with Keras' dynamic loss scale; the reference has one device of one thread too."""

    def make():
        return keras.Sequential(
            [
                keras.Input((WIDTH,)),
                layers.Dense(8, activation="relu", dtype="mixed_float16"),
                layers.Dense(CLASSES, dtype="float32"),
            ]
        )

    reference, model = plain(make), staged(under_strategy(make), [0, 1])
    model.set_pipelining_options(
        gradient_accumulation_steps_per_replica=1, pipeline_schedule=ipu.PipelineSchedule.Sequential
    )
    for each in (reference, model):
        scaled = optimizers.LossScaleOptimizer(optimizers.SGD(0.1), initial_scale=2.0**20, dynamic_growth_steps=3)
        each.compile(scaled, cross_entropy())
        each.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0)
    assert largest_difference(reference, model) == 0
    assert float(model.optimizer.dynamic_scale) == float(reference.optimizer.dynamic_scale) != 2.0**20


@spec("keras/4/execution")
def test_executors_of_poptorch_take_keras_models():
    class WithLoss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = plain(sequential)

        def forward(self, x, target):
            out = self.model(x, training=True)
            return out, poptorch.identity_loss((out - target).square().mean(), reduction="none")

    def sgd(module):
        return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)

    x, target = torch.tensor(X), torch.zeros(ROWS, CLASSES)
    eager, wrapped = WithLoss(), WithLoss()
    optimizer = sgd(eager)
    training = poptorch.trainingModel(wrapped, optimizer=sgd(wrapped))
    for _ in range(3):
        optimizer.zero_grad()
        expected, loss = eager(x, target)
        loss.backward()
        optimizer.step()
        assert torch.equal(training(x, target)[0], expected)
    assert largest_difference(eager.model, wrapped.model) == 0
    with torch.no_grad():
        assert torch.equal(poptorch.inferenceModel(eager.model)(x), eager.model(x))
